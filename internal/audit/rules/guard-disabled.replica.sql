-- Sessions that begin as replicas fire no ordinary trigger, guards included.
SELECT CASE WHEN s.setrole = 0 THEN format('database %I', current_database()) ELSE format('role %I', pg_get_userbyid(s.setrole)) END,
       CASE WHEN s.setrole <> 0 AND s.setdatabase <> 0 THEN format('in database %I', current_database()) END, NULL,
       CASE WHEN s.setrole = 0 THEN 'every session in this database' WHEN s.setdatabase = 0 THEN 'every session of this role'
            ELSE 'every session of this role in this database' END || ' starts with session_replication_role = replica, in which no guard fires',
       NULL,
       CASE WHEN s.setrole = 0 THEN format('ALTER DATABASE %I RESET session_replication_role;', current_database())
            ELSE format('ALTER ROLE %I %sRESET session_replication_role;', pg_get_userbyid(s.setrole),
                        CASE WHEN s.setdatabase <> 0 THEN format('IN DATABASE %I ', current_database()) ELSE '' END) END,
       NULL, NULL, 0
  FROM pg_db_role_setting s
 WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
   AND 'session_replication_role=replica' = ANY (s.setconfig)
   AND EXISTS (SELECT FROM member)
