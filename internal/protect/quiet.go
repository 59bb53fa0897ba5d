package protect

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/tableref"
)

// Silence is what is known of one observed table's last days.
type Silence struct {
	Violations    int64      // within the window
	LastViolation *time.Time // of them; nil without any
	Problems      string     // guards that are missing, altered or disabled, in words: what they would see is not recorded
	ObservedSince *time.Time // since when its guards have been as they are, at the latest; nil when that is not known
	LongEnough    bool       // that is no less than the window ago, by the server's clock
}

// Quiet says whether the table was watched for the whole window, and nothing was seen.
func (s Silence) Quiet() bool { return s.Violations == 0 && s.Problems == "" && s.LongEnough }

//go:embed quiet.sql
var quietQuery string

// Listen reads how quiet tables were during a window that ends now, by the oid of the table. Tables that do not observe are not in
// the result. vouched is since when the caller knows the tables to be observed; it counts only for tables of which the server does
// not know better. Zero: the caller does not know.
//
// The role needs what fencectl grant gives for migrate and for monitor.
func Listen(ctx context.Context, db catalogdb.DBTX, tables []tableref.Table, window time.Duration, vouched time.Time) (map[int64]Silence, error) {
	oids := make([]uint32, len(tables))
	for i, t := range tables {
		oids[i] = uint32(t.OID)
	}
	var since *time.Time
	if !vouched.IsZero() {
		since = &vouched
	}
	rows, err := db.Query(ctx, quietQuery, oids, window.Seconds(), since)
	if err != nil {
		return nil, fmt.Errorf("reading the violations: %w", err)
	}
	heard := map[int64]Silence{}
	var (
		oid      int64
		s        Silence
		problems *string
	)
	_, err = pgx.ForEachRow(rows, []any{&oid, &s.Violations, &s.LastViolation, &problems, &s.ObservedSince, &s.LongEnough}, func() error {
		s.Problems = ""
		if problems != nil {
			s.Problems = *problems
		}
		heard[oid] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the violations: %w", err)
	}
	return heard, nil
}
