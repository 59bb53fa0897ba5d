// Package broken does not compile.
package broken

import (
	"context"

	"example.invalid/nowhere/driver"
)

const remove = "DELETE FROM jobs"

func Broken(ctx context.Context, db *driver.DB) error {
	undefined(ctx)
	db.Exec(ctx, remove)
	return db.Exec(ctx, "UPDATE jobs "+"SET state = 1")
}
