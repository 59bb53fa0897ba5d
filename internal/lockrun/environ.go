package lockrun

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fencectl/fencectl/fenced"
)

// The variables that the command finds.
const (
	VariableLock    = "FENCING_LOCK"   // the name of the innermost lock
	VariableToken   = "FENCING_TOKEN"  // its token, a decimal number
	VariableTokens  = "FENCING_TOKENS" // every lock held, this one and those around it: a JSON object, name to token
	variableOptions = "PGOPTIONS"
)

// Held are the locks that an environment speaks of: the ones around this process.
func Held(environ []string) (map[string]fenced.Token, error) {
	held := map[string]fenced.Token{}
	text := get(environ, VariableTokens)
	if text == "" {
		return held, nil
	}
	err := json.Unmarshal([]byte(text), &held)
	if err == nil && held == nil {
		err = errors.New("it is null")
	}
	for name, token := range held {
		if err == nil && token <= 0 {
			err = fmt.Errorf("the token of %q is not positive", name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the variable %s is not what fencectl lock has set (a JSON object of locks and tokens): %w", VariableTokens, err)
	}
	return held, nil
}

// Environ is environ with what a command under the lock is to find: FENCING_LOCK, FENCING_TOKEN and FENCING_TOKENS, and in
// PGOPTIONS the settings that present the token in every session that libpq opens.
//
// The setting fencing.token holds this lock's token; later options override earlier ones, so a lock within a lock presents
// its own. The fences of the locks around it have their tokens in fencing.tokens, which is set where there are any.
func Environ(environ []string, name string, token fenced.Token) ([]string, error) {
	held, err := Held(environ)
	if err != nil {
		return nil, err
	}
	held[name] = token
	encoded, err := json.Marshal(held)
	if err != nil {
		return nil, err
	}
	tokens := ascii(string(encoded))
	number := fmt.Sprintf("%d", int64(token))

	options := get(environ, variableOptions)
	if options != "" {
		options += " "
	}
	options += "-c " + escapeOption(fenced.SettingToken+"="+number)
	if len(held) > 1 {
		options += " -c " + escapeOption(fenced.SettingTokens+"="+tokens)
	}
	environ = set(environ, VariableLock, name)
	environ = set(environ, VariableToken, number)
	environ = set(environ, VariableTokens, tokens)
	return set(environ, variableOptions, options), nil
}

// escapeOption is one argument as the server reads it out of a startup packet's options: split at spaces, a backslash before
// what is to be taken as it is.
func escapeOption(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		switch c {
		case ' ', '\t', '\n', '\v', '\f', '\r', '\\':
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// ascii writes a JSON text without any letter beyond ASCII: startup options are read before the session has an encoding, and
// in some locales a byte of a letter counts as a space.
func ascii(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// get returns the first value, as getenv does.
func get(environ []string, name string) string {
	for _, variable := range environ {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}

// set leaves one value, whichever of several a program reads.
func set(environ []string, name, value string) []string {
	kept := make([]string, 0, len(environ)+1)
	for _, variable := range environ {
		if !strings.HasPrefix(variable, name+"=") {
			kept = append(kept, variable)
		}
	}
	return append(kept, name+"="+value)
}
