package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/claim"
	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/lockrun"
	"github.com/fencectl/fencectl/internal/locksource"
	"github.com/fencectl/fencectl/internal/lockwait"
	"github.com/fencectl/fencectl/tokensrc"
)

// The exit statuses of fencectl lock that are its own: those of sysexits.h for "try again later", and the next one.
const (
	statusHeld = 75
	statusLost = 76
)

const (
	defaultTTL = 30 * time.Second
	// maxGrace and graceOfTTL: a third of the TTL is for renewing, a third for trying again, a third for ending the command.
	maxGrace   = 10 * time.Second
	graceOfTTL = 3
)

// lockOptions are the flags of fencectl lock.
type lockOptions struct {
	source  *choice
	service locksource.Settings
	wait    time.Duration
	grace   time.Duration
	evict   time.Duration
	noClaim bool
	verbose bool
}

func (a *app) lockCommand() *cobra.Command {
	o := lockOptions{source: &choice{value: locksource.Postgres, allowed: locksource.Kinds()}}
	cmd := &cobra.Command{
		Use:   "lock NAME [flags] -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock, with its writes fenced",
		Long: `Take the lock NAME, claim the fence of that name, run COMMAND, and give the lock back when it has ended. What COMMAND writes
is fenced without a change to it: PGOPTIONS is appended to, so that every session opened by libpq (psql, Python, Ruby, PHP, ...)
presents the lock's token. FENCING_TOKEN has it as a number, FENCING_LOCK the lock's name, FENCING_TOKENS those of the locks
around this one too. COMMAND finds its database by itself: --dsn is fencectl's.

The lock is renewed while COMMAND runs. When that fails, or the lock turns out to be lost, COMMAND is ended: SIGTERM to its
process group, and SIGKILL after --grace. If it could not be renewed, SIGTERM comes so early that the grace period is over
before somebody else can have the lock. A machine that is paused for longer can end nothing in time: when it wakes up, the
fence refuses the writes.

The lock is in the database unless --source names etcd, Redis or ZooKeeper; the database is needed in any case, for the
fence and the source's epoch.

` + lockPlatform + `
Exit status: that of COMMAND, 128 and the signal's number if a signal ended it; or fencectl's own: 75 the lock was not free
within --wait; 76 the lock was lost; 127 there is no such command; 126 it cannot be executed; 1 a newer token has claimed the
fence, or another refusal; 2 wrong usage, no connection or another error; 130 interrupted while waiting.`,
		Example: `  fencectl lock jobs/nightly -- psql "$FENCECTL_DSN" -c "UPDATE public.jobs SET state = 'done'"
  fencectl lock jobs/nightly --wait 0 -- sh -c 'echo "running under token $FENCING_TOKEN"'
  fencectl lock jobs/nightly --wait 30s --ttl 15s --evict 5s --verbose -- true
  fencectl lock account/1 -- fencectl lock account/2 -- printenv FENCING_TOKENS PGOPTIONS`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, command, err := lockArguments(cmd, args)
			if err != nil {
				return err
			}
			if err := o.check(cmd, a.getenv); err != nil {
				return err
			}
			return a.lock(cmd.Context(), &o, name, command)
		},
	}
	flags := cmd.Flags()
	choiceFlag(cmd, o.source, "source", "which service has the lock")
	flags.DurationVar(&o.service.TTL, "ttl", defaultTTL, "how long the lock outlives a holder that is gone, at least 1s")
	flags.DurationVar(&o.wait, "wait", 0, "give up after this long; 0 tries once (default: wait without end)")
	flags.DurationVar(&o.grace, "grace", 0, "from SIGTERM to SIGKILL when the lock is lost, at most a third of --ttl (default: that, up to 10s)")
	flags.BoolVar(&o.noClaim, "no-claim", false, "leave the fence alone: for tables with row fences only")
	flags.DurationVar(&o.evict, "evict", 0, "after waiting this long for the fence end the sessions that still hold it")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "say on stderr what happens")
	flags.StringSliceVar(&o.service.Etcd.Endpoints, "etcd-endpoints", nil, "`HOST:PORT`s of etcd (default $ETCDCTL_ENDPOINTS)")
	flags.StringVar(&o.service.Etcd.CACert, "etcd-cacert", "", "`FILE` with the CA of etcd's certificates (default $ETCDCTL_CACERT)")
	flags.StringVar(&o.service.Etcd.Cert, "etcd-cert", "", "`FILE` with a client certificate for etcd (default $ETCDCTL_CERT)")
	flags.StringVar(&o.service.Etcd.Key, "etcd-key", "", "`FILE` with its key (default $ETCDCTL_KEY)")
	flags.StringVar(&o.service.Etcd.User, "etcd-user", "", "etcd's `USER` (default $ETCDCTL_USER), with $ETCDCTL_PASSWORD")
	flags.StringVar(&o.service.RedisURL, "redis-url", "", "where Redis is, a redis:// `URL` (default $REDIS_URL)")
	flags.StringVar(&o.service.ZooKeeperServers, "zookeeper-servers", "", "`HOST:PORT`s of ZooKeeper, perhaps with /CHROOT (default $ZOOKEEPER_SERVERS)")
	return cmd
}

// lockArguments takes "NAME -- COMMAND ARG..." apart.
func lockArguments(cmd *cobra.Command, args []string) (name string, command []string, err error) {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) > 1:
		return "", nil, &usageError{cmd, fmt.Sprintf("put -- between the lock's name and the command: fencectl lock %s -- %s", args[0], args[1])}
	case dash != 1 || len(args) < 2:
		return "", nil, &usageError{cmd, "expected the name of one lock, -- and a command"}
	case args[0] == "":
		return "", nil, &usageError{cmd, "the lock's name must not be empty"}
	case args[1] == "":
		return "", nil, &usageError{cmd, "the command must not be empty"}
	}
	return args[0], args[1:], nil
}

// serviceFlags are the flags that only one source knows.
var serviceFlags = map[string]string{
	"etcd-endpoints": locksource.Etcd, "etcd-cacert": locksource.Etcd, "etcd-cert": locksource.Etcd, "etcd-key": locksource.Etcd,
	"etcd-user": locksource.Etcd, "redis-url": locksource.Redis, "zookeeper-servers": locksource.ZooKeeper,
}

// check refuses what makes no sense, and fills in what was left to the environment.
func (o *lockOptions) check(cmd *cobra.Command, getenv func(string) string) error {
	o.service.Kind = o.source.value
	for flag, source := range serviceFlags {
		if cmd.Flags().Changed(flag) && source != o.service.Kind {
			return &usageError{cmd, fmt.Sprintf("--%s is for --source %s", flag, source)}
		}
	}
	switch {
	case o.service.TTL < time.Second:
		return &usageError{cmd, "--ttl must be at least 1s"}
	case o.wait < 0:
		return &usageError{cmd, "--wait must not be negative; leave it out to wait without end"}
	case cmd.Flags().Changed("evict") && o.evict <= 0:
		return &usageError{cmd, "--evict must be a positive duration"}
	case o.noClaim && o.evict > 0:
		return &usageError{cmd, "--evict is about the claim, and --no-claim leaves it out"}
	case o.grace < 0:
		return &usageError{cmd, "--grace must not be negative"}
	case o.grace > o.service.TTL/graceOfTTL:
		return &usageError{cmd, fmt.Sprintf("--grace must be at most a third of --ttl, so that the command has ended before somebody else can have the lock: use --ttl %v", graceOfTTL*o.grace)}
	}
	if !cmd.Flags().Changed("wait") {
		o.wait = -1
	}
	if !cmd.Flags().Changed("grace") {
		o.grace = min(o.service.TTL/graceOfTTL, maxGrace)
	}

	orElse := func(value *string, variable string) {
		if *value == "" {
			*value = getenv(variable)
		}
	}
	switch o.service.Kind {
	case locksource.Etcd:
		etcd := &o.service.Etcd
		if len(etcd.Endpoints) == 0 && getenv("ETCDCTL_ENDPOINTS") != "" {
			etcd.Endpoints = strings.Split(getenv("ETCDCTL_ENDPOINTS"), ",")
		}
		if len(etcd.Endpoints) == 0 {
			return &usageError{cmd, "say where etcd is: --etcd-endpoints or ETCDCTL_ENDPOINTS"}
		}
		orElse(&etcd.CACert, "ETCDCTL_CACERT")
		orElse(&etcd.Cert, "ETCDCTL_CERT")
		orElse(&etcd.Key, "ETCDCTL_KEY")
		orElse(&etcd.User, "ETCDCTL_USER")
		user, password, both := strings.Cut(etcd.User, ":")
		if etcd.User, etcd.Password = user, password; !both {
			etcd.Password = getenv("ETCDCTL_PASSWORD")
		}
	case locksource.Redis:
		if orElse(&o.service.RedisURL, "REDIS_URL"); o.service.RedisURL == "" {
			return &usageError{cmd, "say where Redis is: --redis-url or REDIS_URL"}
		}
	case locksource.ZooKeeper:
		if orElse(&o.service.ZooKeeperServers, "ZOOKEEPER_SERVERS"); o.service.ZooKeeperServers == "" {
			return &usageError{cmd, "say where ZooKeeper is: --zookeeper-servers or ZOOKEEPER_SERVERS"}
		}
	}
	return nil
}

// lock takes the lock, runs the command and gives the lock back.
func (a *app) lock(ctx context.Context, o *lockOptions, name string, command []string) error {
	// Before any waiting: what is mistyped shall not be found out in the small hours.
	path, err := lockrun.Find(command[0])
	if err != nil {
		return notStarted(err)
	}
	around, err := lockrun.Held(os.Environ())
	if err != nil {
		return err
	}
	if _, within := around[name]; within {
		fmt.Fprintf(a.stderr, "fencectl: warning: this already runs under the lock %s (%s), and waits for itself if that is the same one\n", oneLine(name), lockrun.VariableTokens)
	}
	if o.verbose {
		o.service.Logger = slog.New(slog.NewTextHandler(a.stderr, nil))
	}
	server, err := a.open(ctx, connect.Options{Installed: true, Write: true})
	if err != nil {
		return err
	}
	defer server.Close()
	source, closeSource, err := locksource.Open(ctx, &o.service, server.Pool)
	if err != nil {
		return err
	}
	defer closeSource()

	// Until the command runs a signal ends the waiting, and the lock is given back; then it is the command's.
	interruptible := newInterruptible(ctx)
	defer interruptible.stop()
	grant, err := a.acquire(interruptible.ctx, o, source, name)
	if err != nil {
		return err
	}
	status, err := a.runUnder(interruptible, o, server.Pool, grant, lockrun.Command{Path: path, Args: command})
	a.giveBack(ctx, o, grant, err)
	if err == nil && status != statusFine {
		return &exitError{status: status}
	}
	return err
}

// giveBack releases the lock, also after it was lost: it may have been given up before it had lapsed.
func (a *app) giveBack(ctx context.Context, o *lockOptions, grant tokensrc.Grant, outcome error) {
	ctx = context.WithoutCancel(ctx)
	var exit *exitError
	lost := errors.As(outcome, &exit) && exit.status == statusLost
	if lost {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Second) // most likely the service is away
		defer cancel()
	}
	if err := grant.Release(ctx); err != nil && !lost {
		// The command has done its work; that others wait a little longer does not change that.
		fmt.Fprintf(a.stderr, "fencectl: warning: %s; it lapses within %v\n", oneLine(strings.TrimPrefix(err.Error(), "tokensrc: ")), o.service.TTL)
	}
}

func (a *app) acquire(ctx context.Context, o *lockOptions, source tokensrc.Source, name string) (tokensrc.Grant, error) {
	begun := time.Now()
	grant, err := locksource.Acquire(ctx, source, name, o.wait)
	switch {
	case err == nil:
		a.say(o, "took the lock %s after %v, token %s", oneLine(name), time.Since(begun).Round(time.Millisecond), grant.Token())
		return grant, nil
	case errors.Is(err, tokensrc.ErrHeld) && o.wait == 0:
		return nil, &exitError{statusHeld, fmt.Errorf("lock %s is held", name)}
	case errors.Is(err, tokensrc.ErrHeld):
		return nil, &exitError{statusHeld, fmt.Errorf("lock %s is held, and was not free within %v", name, o.wait)}
	case errors.Is(err, tokensrc.ErrIncarnation):
		return nil, &refusal{err}
	case ctx.Err() != nil:
		// Not every error of a driver whose context has ended carries the cause, which is the signal.
		return nil, context.Cause(ctx)
	}
	return nil, err
}

// runUnder claims the fence and runs the command.
func (a *app) runUnder(interruptible *interruptible, o *lockOptions, pool *pgxpool.Pool, grant tokensrc.Grant, command lockrun.Command) (int, error) {
	if !o.noClaim {
		if err := a.claimFor(o, pool, grant); err != nil {
			return 0, err
		}
	}
	var err error
	if command.Env, err = lockrun.Environ(os.Environ(), grant.Name(), grant.Token()); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, lockrun.Passed()...)
	defer signal.Stop(signals)
	if err := interruptible.settle(); err != nil {
		return 0, err
	}
	result, err := lockrun.Run(grant, command, &lockrun.Options{
		Grace:   o.grace,
		Signals: signals,
		Stopping: func(why error) {
			fmt.Fprintf(a.stderr, "fencectl: lock %s is lost: %s; ending the command\n", oneLine(grant.Name()), oneLine(reason(why)))
		},
		Warn: func(err error) { fmt.Fprintf(a.stderr, "fencectl: warning: %s\n", oneLine(err.Error())) },
	})
	switch {
	case err != nil:
		return 0, notStarted(err)
	case errors.Is(result.Lost, tokensrc.ErrLost), errors.Is(result.Lost, lockrun.ErrNotRenewed):
		return 0, &exitError{status: statusLost} // Stopping has said it
	case result.Lost != nil:
		return 0, result.Lost
	}
	a.say(o, "the command has ended with status %d", result.Status)
	return result.Status, nil
}

// claimFor raises the fence of the lock's name to its token.
func (a *app) claimFor(o *lockOptions, pool *pgxpool.Pool, grant tokensrc.Grant) error {
	ctx := grant.Context()
	result, err := claim.Claim(ctx, pool, grant.Name(), grant.Token(), &claim.Options{
		EvictAfter: o.evict,
		Waiting: func(blocking []lockwait.Session) {
			if o.verbose || a.terminal() {
				fmt.Fprintf(a.stderr, "fencectl: waiting for %s\n", oneLine(lockwait.List(blocking)))
			}
		},
		Evicted: func(s lockwait.Session) { fmt.Fprintf(a.stderr, "fencectl: ended %s\n", oneLine(s.String())) },
	})
	if err == nil {
		a.say(o, "claimed the fence %s (before: %s)", oneLine(grant.Name()), result.Previous)
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, tokensrc.ErrLost) {
			return &exitError{statusLost, fmt.Errorf("lock %s is lost: %s; the command was not run", grant.Name(), reason(cause))}
		}
		return cause
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == fenced.SQLStateStale {
		// Somebody newer has claimed. If the lock is ours all the same, it is the source whose numbers have gone back.
		if checker, ok := grant.(fenced.Checker); ok && checker.Check(ctx) == nil {
			return refuse("lock %s is held, yet its token %s is older than the one that its fence has accepted: the source %s has gone back (it lost data, "+
				"or the fence was raised under another one); raise its epoch with fencectl epoch adopt, or see fencectl fence show %s", grant.Name(), grant.Token(), o.service.Kind, grant.Name())
		}
	}
	return fmt.Errorf("claiming the fence %s with token %s: %w", grant.Name(), grant.Token(), err)
}

// reason is what a lost lock's error says besides that it is lost, and which.
func reason(err error) string {
	text := err.Error()
	if _, after, found := strings.Cut(text, "under token "); found && errors.Is(err, tokensrc.ErrLost) {
		if _, why, found := strings.Cut(after, ": "); found {
			return why
		}
	}
	return strings.TrimPrefix(text, tokensrc.ErrLost.Error()+": ")
}

// notStarted gives an error of lockrun the exit status that shells have for it.
func notStarted(err error) error {
	var start *lockrun.StartError
	if errors.As(err, &start) {
		return &exitError{start.Status(), err}
	}
	return err
}

// say is for --verbose.
func (a *app) say(o *lockOptions, format string, args ...any) {
	if o.verbose {
		fmt.Fprintf(a.stderr, "fencectl: "+format+"\n", args...)
	}
}

// interruptible is a context that a signal ends until it is settled, and none afterwards: it is the parent of the grant's.
type interruptible struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	signals chan os.Signal
	settled chan struct{}
	done    chan struct{}
	unhook  func() bool
}

func newInterruptible(ctx context.Context) *interruptible {
	i := &interruptible{signals: make(chan os.Signal, 1), settled: make(chan struct{}), done: make(chan struct{})}
	i.ctx, i.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	signal.Notify(i.signals, lockrun.Interrupts()...)
	// The program's context ends with the first signal for good, also with one that is the command's. From here on signals are
	// heard here; what is left are one that came before, and ends for other reasons.
	if ctx.Err() != nil {
		i.cancel(context.Cause(ctx))
	}
	i.unhook = context.AfterFunc(ctx, func() {
		var stop interrupted
		if !errors.As(context.Cause(ctx), &stop) {
			i.cancel(context.Cause(ctx))
		}
	})
	go func() {
		defer close(i.done)
		defer signal.Stop(i.signals) // a second signal ends the process, as it does in every command
		select {
		case s := <-i.signals:
			i.cancel(interrupted{s})
		case <-i.settled:
		}
	}()
	return i
}

// settle ends the time in which signals interrupt. The error is that of one which came before.
func (i *interruptible) settle() error {
	close(i.settled)
	<-i.done
	select {
	case s := <-i.signals: // in the last moment
		i.cancel(interrupted{s})
	default:
	}
	return context.Cause(i.ctx)
}

func (i *interruptible) stop() {
	select {
	case <-i.settled:
	default:
		close(i.settled)
	}
	<-i.done
	i.unhook()
	i.cancel(nil)
}
