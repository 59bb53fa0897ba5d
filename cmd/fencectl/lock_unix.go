//go:build !windows

package main

// lockPlatform is what the help of fencectl lock says about this operating system.
const lockPlatform = `Signals are passed on to COMMAND's process group. On a terminal COMMAND gets it as a shell's job does; Ctrl-Z stops the
renewal as well.
`
