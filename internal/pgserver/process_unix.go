//go:build linux || darwin || freebsd

package pgserver

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dynamicSharedMemory is the implementation that needs no kernel tuning.
const dynamicSharedMemory = "posix"

func supported() error { return nil }

// account is the user that runs the server when the caller is root: postgres refuses to run as root.
type account struct {
	name     string
	uid, gid uint32
}

// accountNames are the accounts that may run the server for root, the preferred first.
var accountNames = []string{"postgres", "nobody"}

// serverAccount is nil when the caller is not root and runs the server itself.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range accountNames {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("pgserver: user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("pgserver: user %s: %w", name, err)
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("pgserver: PostgreSQL refuses to run as root, and there is no user %s to run it: "+
		"create one ('useradd --system %s'), or run this as an ordinary user", strings.Join(accountNames, " or "), accountNames[0])
}

// own gives a file, or a directory with all in it, to the account. Symbolic links are not followed.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	err := filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, int(a.uid), int(a.gid))
	})
	if err != nil {
		return fmt.Errorf("pgserver: giving %s to user %s: %w", path, a.name, err)
	}
	return nil
}

// ownsOrCaller tells whether the path is a directory, not a link to one, of the account or of this process's user.
func (a *account) ownsOrCaller(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == uint32(os.Geteuid()) || a != nil && stat.Uid == a.uid)
}

// blockedAt is the first directory above path that the account may not enter, or "". Access lists beyond the mode bits
// are not looked at: the answer only chooses a directory or explains a failure beforehand.
func (a *account) blockedAt(path string) string {
	if a == nil {
		return ""
	}
	var above []string
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		above = append([]string{dir}, above...)
		if dir == filepath.Dir(dir) {
			break
		}
	}
	for _, dir := range above {
		info, err := os.Stat(dir)
		if err != nil {
			return dir
		}
		may := info.Mode() & 0o001
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			switch {
			case stat.Uid == a.uid:
				may = info.Mode() & 0o100
			case stat.Gid == a.gid:
				may = info.Mode() & 0o010
			}
		}
		if may == 0 {
			return dir
		}
	}
	return ""
}

// runAs prepares a command to run as the account, in a process group of its own: an interrupt typed at the caller's
// terminal must reach the caller, who then decides what happens to the server.
func runAs(cmd *exec.Cmd, a *account) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
}

// process is a running postmaster.
type process struct {
	pid    int
	exited chan struct{} // closed when it has ended and was waited for
	status string        // how it ended; to be read after exited is closed
}

// startProcess starts the command. Its only goroutine ends with the process.
func startProcess(cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		_ = cmd.Wait() // its error is the status
		p.status = cmd.ProcessState.String()
	}()
	return p, nil
}

// shutdown is one of the postmaster's ways to end.
type shutdown syscall.Signal

const (
	fastShutdown      = shutdown(syscall.SIGINT)  // sessions are ended, a checkpoint is written
	immediateShutdown = shutdown(syscall.SIGQUIT) // nothing is written: the next start recovers
)

func (s shutdown) String() string { return syscall.Signal(s).String() }

func (p *process) shutdown(how shutdown) error { return syscall.Kill(p.pid, syscall.Signal(how)) }

// stopTree freezes the postmaster, then its children: a frozen postmaster starts no new ones meanwhile.
func (p *process) stopTree() error {
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		return err
	}
	children, err := childrenOf(p.pid)
	if err != nil {
		return err
	}
	return signalAll(children, syscall.SIGSTOP)
}

// continueTree thaws the children, then the postmaster.
func (p *process) continueTree() error {
	children, err := childrenOf(p.pid)
	if err != nil {
		return err
	}
	return signalAll(append(children, p.pid), syscall.SIGCONT)
}

// killTree ends the postmaster and its children with SIGKILL. All are frozen first, so that none sees another die and
// writes something about it. It returns when the children are gone: while one lives, it holds the shared memory, and the
// next start would refuse.
func (p *process) killTree() error {
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		return err
	}
	children, err := childrenOf(p.pid)
	if err == nil {
		err = signalAll(children, syscall.SIGSTOP)
	}
	err = errors.Join(err, signalAll(append(children, p.pid), syscall.SIGKILL))
	if err != nil {
		return err
	}
	const patience = 10 * time.Second
	deadline := time.Now().Add(patience)
	for _, child := range children {
		for !gone(child) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d is still there %s after SIGKILL", child, patience)
			}
			time.Sleep(time.Millisecond) //nolint:forbidigo // polls another process, with a deadline
		}
	}
	return nil
}

// signalAll sends a signal to each process; one that has ended meanwhile is none to worry about.
func signalAll(pids []int, signal syscall.Signal) error {
	var all error
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			all = errors.Join(all, fmt.Errorf("%s to process %d: %w", signal, pid, err))
		}
	}
	return all
}

// childrenOf lists the living children of a process. PostgreSQL's children leave the postmaster's process group, so that
// a signal to the group would miss them.
func childrenOf(pid int) ([]int, error) {
	if runtime.GOOS != "linux" {
		out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
		if err != nil {
			return nil, fmt.Errorf("listing processes: %w", err)
		}
		var children []int
		for line := range strings.Lines(string(out)) {
			var child, parent int
			if _, err := fmt.Sscan(line, &child, &parent); err == nil && parent == pid {
				children = append(children, child)
			}
		}
		return children, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var children []int
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if state, parent := procStat(child); parent == pid && state != 'Z' {
			children = append(children, child)
		}
	}
	return children, nil
}

// gone tells whether a process has ended. A zombie counts: it holds nothing any more, and where nobody reaps orphans (a
// container without an init) it stays one.
func gone(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	if runtime.GOOS != "linux" {
		return false
	}
	state, _ := procStat(pid)
	return state == 'Z' || state == 0
}

// procStat is the state and the parent of a process, zero when there is no such process. The second field, the command's
// name, is in parentheses and may itself hold any character.
func procStat(pid int) (state byte, parent int) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	parent, err = strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0, 0
	}
	return fields[0][0], parent
}
