//go:build unix

package service_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencectl/fencectl/internal/service"
)

// The test binary is also the server, and the caller that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			fmt.Println("serving", serve(os.Args[2], os.Args[3]))
			os.Exit(1)
		case "own":
			p, err := service.Start(context.Background(), options())
			dir, dirErr := service.NewDir("test")
			fmt.Println(p.Addr(), p.Dir(), dir.Path(), errors.Join(err, dirErr))
			select {}
		}
	}
	os.Exit(m.Run())
}

// serve accepts connections and says whether it found data from an earlier life.
func serve(port, dir string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	_, err = os.Stat(data)
	answer := fmt.Sprintf("%d %v\n", os.Getpid(), err == nil)
	if err := os.WriteFile(data, nil, 0o600); err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_, _ = conn.Write([]byte(answer))
		conn.Close()
	}
}

func options() service.Options {
	return service.Options{
		Name: "test-server",
		Command: func(port, dir string) (*exec.Cmd, error) {
			return exec.Command(os.Args[0], "serve", port, dir), nil
		},
		Ready: func(_ context.Context, addr string) error {
			_, _, err := ask(addr)
			return err
		},
	}
}

func ask(addr string) (pid int, hadData bool, err error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return 0, false, err
	}
	defer conn.Close()
	_, err = fmt.Fscan(conn, &pid, &hadData)
	return pid, hadData, err
}

func start(t *testing.T) *service.Process {
	t.Helper()
	p, err := service.Start(t.Context(), options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestARestartKeepsTheAddressAndTheDataAndAnEmptyOneOnlyTheAddress(t *testing.T) {
	t.Parallel()
	p := start(t)
	addr := p.Addr()
	first, hadData, err := ask(addr)
	if err != nil || hadData {
		t.Fatalf("a new server has data %v, %v", hadData, err)
	}
	for _, again := range []struct {
		restart  func(context.Context) error
		hadsData bool
	}{{p.Restart, true}, {p.RestartEmpty, false}, {p.Restart, true}} {
		if err := again.restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		pid, hadData, err := ask(addr)
		if err != nil || hadData != again.hadsData || pid == first {
			t.Errorf("pid %d after %d, data %v want %v, %v", pid, first, hadData, again.hadsData, err)
		}
	}
}

func TestStopLeavesNoProcessAndNoDirectory(t *testing.T) {
	t.Parallel()
	p := start(t)
	pid, _, err := ask(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there (%v)", pid, err)
	}
	if _, err := os.Stat(p.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there (%v)", p.Dir(), err)
	}
}

func TestAKilledCallerLeavesNoServerAndNoDirectory(t *testing.T) {
	t.Parallel()
	caller := exec.Command(os.Args[0], "own")
	out, err := caller.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = caller.Wait() }()
	defer func() { _ = caller.Process.Kill() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) != 4 {
		t.Fatalf("it said %q, %v", line, err)
	}
	if _, _, err := ask(fields[0]); err != nil {
		t.Fatal(err)
	}
	if err := caller.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for {
		_, _, answers := ask(fields[0])
		_, there := os.Stat(fields[1])
		_, other := os.Stat(fields[2])
		if answers != nil && errors.Is(there, fs.ErrNotExist) && errors.Is(other, fs.ErrNotExist) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("20 s later: asking it: %v; its directory: %v; another one: %v", answers, there, other)
		}
	}
}

func TestADirectoryIsGoneWhenItIsRemoved(t *testing.T) {
	t.Parallel()
	dir, err := service.NewDir("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir.Path(), "data"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there (%v)", dir.Path(), err)
	}
}

func TestAServerThatDoesNotStartIsAnErrorThatRepeatsWhatItSaid(t *testing.T) {
	t.Parallel()
	opts := options()
	opts.Command = func(string, string) (*exec.Cmd, error) {
		return exec.Command("/bin/sh", "-c", "echo bad configuration >&2; exit 3"), nil
	}
	_, err := service.Start(t.Context(), opts)
	if err == nil || !strings.Contains(err.Error(), "test-server did not start: it ended while starting") || !strings.Contains(err.Error(), "bad configuration") {
		t.Errorf("the error is %v", err)
	}
}

func TestAServerThatIsNeverReadyIsGivenUpAndKilled(t *testing.T) {
	t.Parallel()
	opts := options()
	opts.Within = 300 * time.Millisecond
	pids := make(chan int, 1)
	opts.Ready = func(_ context.Context, addr string) error {
		if pid, _, err := ask(addr); err == nil && len(pids) == 0 {
			pids <- pid
		}
		return errors.New("not quite")
	}
	_, err := service.Start(t.Context(), opts)
	if err == nil || !strings.Contains(err.Error(), "not ready after 300ms") || !strings.Contains(err.Error(), "not quite") {
		t.Errorf("the error is %v", err)
	}
	select {
	case pid := <-pids:
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there (%v)", pid, err)
		}
	default: // it was killed before it listened
	}
}
