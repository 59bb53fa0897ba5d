// Package stdout runs a documentation example that needs a server which may not be installed: the test that starts the server, or
// skips, calls the example and compares what it prints, as "// Output:" would.
package stdout

import (
	"io"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Compare runs the example and fails the test when it prints something else.
func Compare(t *testing.T, example func(), want string) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	printed := make(chan []byte)
	go func() {
		text, _ := io.ReadAll(reader) // ends when the writer is closed
		printed <- text
	}()
	func() {
		terminal := os.Stdout
		os.Stdout = writer
		defer func() {
			os.Stdout = terminal
			writer.Close()
		}()
		example()
	}()
	if diff := cmp.Diff(want, string(<-printed)); diff != "" {
		t.Errorf("the example prints (-want +got):\n%s", diff)
	}
}
