//go:build !linux

package torture

import (
	"context"
	"errors"
	"io"
)

var errNotHere = errors.New("torture runs on Linux only: it stops and kills processes, and makes sure that none of them outlives it")

func run(context.Context, *Options) (*Report, error) { return nil, errNotHere }

func playPart(context.Context, string, io.Reader, io.Writer) error { return errNotHere }

func capable() capabilities { return capabilities{} }
