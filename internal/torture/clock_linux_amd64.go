package torture

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A wallClock is this process's own wall clock, put between the process and the machine's. Stepping it is what an NTP daemon or an
// operator does to a machine's clock, seen from one process: CLOCK_REALTIME jumps, CLOCK_MONOTONIC does not, which is how Linux
// behaves.
//
// There is no gentler way for one process alone. The machine's clock belongs to everybody on it; a time namespace shifts the
// monotonic clock and not the wall clock; and libraries that are preloaded to fake the time are not asked by Go, which calls the vDSO
// itself. So the process rewrites the vDSO's clock_gettime in its own copy of it (the pages are private), to a system call
// whose answer is moved by an offset.
type wallClock struct {
	memory *os.File
	offset int64 // the address of the offset, in seconds
}

// canStepClocks tries it in this process, without a change.
func canStepClocks() bool {
	memory, _, room, err := clockCode()
	if err != nil {
		return false
	}
	defer memory.Close()
	code := make([]byte, 1)
	if _, err := memory.ReadAt(code, room); err != nil {
		return false
	}
	_, err = memory.WriteAt(code, room) // some kernels are told to refuse it
	return err == nil
}

// clockCode is this process's memory, open for writing, with the addresses of the vDSO's clock_gettime and of room for other code. The caller
// closes the memory.
func clockCode() (memory *os.File, entry, room int64, err error) {
	from, to, err := vdso()
	if err != nil {
		return nil, 0, 0, err
	}
	if memory, err = os.OpenFile("/proc/self/mem", os.O_RDWR, 0); err != nil {
		return nil, 0, 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, memory.Close())
		}
	}()
	image, err := elf.NewFile(io.NewSectionReader(memory, from, to-from))
	if err != nil {
		return nil, 0, 0, fmt.Errorf("vDSO: %w", err)
	}
	symbols, err := image.DynamicSymbols()
	if err != nil {
		return nil, 0, 0, fmt.Errorf("vDSO: %w", err)
	}
	for _, symbol := range symbols {
		switch symbol.Name {
		case "__vdso_clock_gettime":
			entry = from + int64(symbol.Value)
		case "__vdso_clock_getres": // Go's runtime has no use for it
			room = from + int64(symbol.Value)
		}
	}
	if entry == 0 || room == 0 {
		return nil, 0, 0, errors.New("vDSO: no clock_gettime")
	}
	return memory, entry, room, nil
}

// interceptWallClock prepares this process. It is done once, early, while hardly anything else runs.
func interceptWallClock() (_ *wallClock, err error) {
	memory, entry, room, err := clockCode()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, memory.Close())
		}
	}()
	code := []byte{
		0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
		0x75, 0x0a, // jnz to the ret
		0x48, 0x8b, 0x0d, 0x04, 0, 0, 0, // mov rcx, [the offset]
		0x48, 0x01, 0x0e, // add [rsi], rcx: the seconds
		0xc3, // ret
	}
	clock := &wallClock{memory: memory, offset: room + int64(len(code))}
	if _, err := memory.WriteAt(append(code, make([]byte, 8)...), room); err != nil {
		return nil, fmt.Errorf("vDSO: %w", err)
	}
	// The jump comes last and in one piece: another thread may be asking for the time.
	jump := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(int32(room-(entry+5))))
	jump = append(jump, make([]byte, 8-len(jump))...)
	if _, err := memory.ReadAt(jump[5:], entry+5); err != nil {
		return nil, fmt.Errorf("vDSO: %w", err)
	}
	if _, err := memory.WriteAt(jump, entry); err != nil {
		return nil, fmt.Errorf("vDSO: %w", err)
	}
	return clock, nil
}

// Step makes the wall clock jump, and says whether it did.
func (c *wallClock) Step(by time.Duration) error {
	var seconds [8]byte
	if _, err := c.memory.ReadAt(seconds[:], c.offset); err != nil {
		return err
	}
	offset := int64(binary.LittleEndian.Uint64(seconds[:])) + int64(by/time.Second)
	before := time.Now()
	if _, err := c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(offset)), c.offset); err != nil {
		return err
	}
	after := time.Now()
	if jumped := after.Round(0).Sub(before.Round(0)) - after.Sub(before); (jumped - by.Truncate(time.Second)).Abs() > time.Second {
		return fmt.Errorf("the wall clock jumped by %v instead of %v", jumped, by)
	}
	return nil
}

// Close ends the stepping; the clock stays where it is.
func (c *wallClock) Close() error { return c.memory.Close() }

// vdso is where the kernel has mapped the vDSO.
func vdso() (from, to int64, err error) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if !strings.HasSuffix(lines.Text(), "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err != nil {
			return 0, 0, err
		}
		return from, to, nil
	}
	return 0, 0, errors.New("there is no vDSO")
}
