package main

// lockPlatform is what the help of fencectl lock says about this operating system.
const lockPlatform = `On Windows there is neither SIGTERM nor a process group: when the lock is lost COMMAND is ended at once, --grace or not, and what
it has started keeps running (fenced, but running). Signals are not passed on; Ctrl-C reaches COMMAND through the console.
`
