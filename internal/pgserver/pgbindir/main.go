// Command pgbindir prints the directory of the PostgreSQL server binaries that the tests and the demo would use. When there
// is none it says on standard error what to install, and exits with status 1. The Makefile asks it, so that the search is
// written once.
package main

import (
	"fmt"
	"os"

	"github.com/fencectl/fencectl/internal/pgserver"
)

func main() {
	dir, err := pgserver.FindBinDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
