package fenced

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// An Observer is told what Claim and Run did, for metrics. Its methods are called on the caller's goroutine and must be quick.
// fenced/fencedotel has one for OpenTelemetry.
type Observer interface {
	// Claimed is called after every claim of one fence.
	Claimed(ctx context.Context, event ClaimEvent)
	// Ran is called after every attempt to run a transaction.
	Ran(ctx context.Context, event RunEvent)
}

// A ClaimEvent describes a claim of one fence.
type ClaimEvent struct {
	Fence   string
	Token   Token
	Took    time.Duration // with the wait for older writers
	Evicted int           // sessions that were ended for it
	Err     error         // as the caller gets it; see [Kind]
}

// A RunEvent describes one attempt to run a fenced transaction.
type RunEvent struct {
	Fence   string // the first grant's name
	Token   Token
	Took    time.Duration
	Attempt int   // from 1
	Err     error // as the caller gets it; see [Kind]
}

// Kind is a refusal in one word: "stale", "unfenced", "invalid", "unclaimed" or "unsupported"; empty for any other error and for nil.
func Kind(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrStale):
		return "stale"
	case errors.Is(err, ErrUnfenced):
		return "unfenced"
	case errors.Is(err, ErrInvalidToken):
		return "invalid"
	case errors.Is(err, ErrUnclaimed):
		return "unclaimed"
	case errors.Is(err, ErrUnsupported):
		return "unsupported"
	}
	return ""
}

// logRefusal logs what an operator wants to know: refusals, not ordinary errors, which are the caller's.
func logRefusal(ctx context.Context, logger *slog.Logger, what string, fence string, token Token, err error) {
	if logger == nil {
		return
	}
	if kind := Kind(err); kind != "" {
		logger.WarnContext(ctx, what+" refused", "kind", kind, "fence", fence, "token", token.String(), "error", err)
	}
}
