//go:build !unix

package service

import "os/exec"

// Elsewhere a killed caller leaves its server running: what would prevent that there (a job object) has nothing in common with this.

func ownGroup(*exec.Cmd) {}

type watchdog struct{}

func watch(int, string) (*watchdog, error) { return nil, nil }

func (*watchdog) stop() {}
