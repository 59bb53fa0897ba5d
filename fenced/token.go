package fenced

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Token is a fencing token: a positive 63-bit integer that a token source issues together with a grant. Later
// grants of the same lock have greater tokens, so tokens are compared with < and >.
//
// The low 48 bits are the source's own counter ([Token.Seq]), the 15 bits above them the epoch of the source
// ([Token.Epoch]), which grows when the counter may have gone back (a restore, a failover that lost writes). In
// epoch 0 a token is simply the counter: the etcd revision 34 is Token(34).
//
// The zero Token means "no token". In the database a token is a bigint; in JSON it is a plain number.
type Token int64

// NewToken composes the token of a source's counter and epoch. It fails when either is negative or does not fit
// (see [MaxEpoch] and [MaxSeq]), and when both are zero, because zero is not a token.
func NewToken(epoch int, seq int64) (Token, error) {
	switch {
	case epoch < 0 || int64(epoch) > MaxEpoch:
		return 0, fmt.Errorf("fenced: epoch %d is outside 0 to %d", epoch, int64(MaxEpoch))
	case seq < 0 || seq > MaxSeq:
		return 0, fmt.Errorf("fenced: counter %d is outside 0 to %d: the token would run into the epoch", seq, int64(MaxSeq))
	case epoch == 0 && seq == 0:
		return 0, errors.New("fenced: epoch 0 and counter 0 make no token: tokens are positive")
	}
	return Token(int64(epoch)<<SeqBits | seq), nil
}

// ParseToken reads what [Token.String] writes, "34" or "1:34" (epoch, colon, counter), and the plain decimal form
// that the database shows, so "281474976710690" is the same token as "1:34".
func ParseToken(s string) (Token, error) {
	epochText, seqText, split := strings.Cut(s, ":")
	if !split {
		n, err := parseDigits(s)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("fenced: %q is not a token: want a positive 63-bit integer, or epoch:counter", s)
		}
		return Token(n), nil
	}
	epoch, err1 := parseDigits(epochText)
	seq, err2 := parseDigits(seqText)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("fenced: %q is not a token: want epoch:counter, two decimal numbers", s)
	}
	if epoch > MaxEpoch {
		return 0, fmt.Errorf("fenced: epoch %d is outside 0 to %d", epoch, int64(MaxEpoch))
	}
	return NewToken(int(epoch), seq)
}

// parseDigits is strconv.ParseInt without the sign: "+34" and "-0" are no tokens. Nor are more than 19 digits, however many of
// them are leading zeros: the setting fencing.token takes no more, and a text means the same to both.
func parseDigits(s string) (int64, error) {
	if s == "" || len(s) > 19 || strings.Trim(s, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(s, 10, 64)
}

// Epoch is the epoch of the source that issued the token, 0 to [MaxEpoch].
func (t Token) Epoch() int { return int(int64(t) >> SeqBits) }

// Seq is the source's own counter, for example an etcd revision, 0 to [MaxSeq].
func (t Token) Seq() int64 { return int64(t) & MaxSeq }

// Valid reports whether t can be presented: whether it is positive.
func (t Token) Valid() bool { return t > 0 }

// String is "34" in epoch 0 and "1:34" in epoch 1. Values that are not tokens print as the number they are.
func (t Token) String() string {
	if t <= 0 || t.Epoch() == 0 {
		return strconv.FormatInt(int64(t), 10)
	}
	return strconv.Itoa(t.Epoch()) + ":" + strconv.FormatInt(t.Seq(), 10)
}

// Value makes a Token a bigint parameter of database/sql.
func (t Token) Value() (driver.Value, error) { return int64(t), nil }

// Scan reads a bigint column. NULL is refused: a fence is never NULL; scan into a sql.Null[fenced.Token] where
// a query can yield it.
func (t *Token) Scan(src any) error {
	switch v := src.(type) {
	case int64:
		*t = Token(v)
		return nil
	case []byte:
		return t.scanText(string(v))
	case string:
		return t.scanText(v)
	case nil:
		return errors.New("fenced: cannot scan NULL into a Token")
	default:
		return fmt.Errorf("fenced: cannot scan %T into a Token", src)
	}
}

func (t *Token) scanText(s string) error {
	// Not ParseToken: a column holds 0 until its first fenced write, and that is not an error to read.
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return fmt.Errorf("fenced: cannot scan %q into a Token", s)
	}
	*t = Token(n)
	return nil
}
