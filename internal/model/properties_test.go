package model

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint/catalog"
	"github.com/fencectl/fencectl/internal/pgtest"
)

// chance is a source of random values that the test's log names.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := number(t, "FENCECTL_MODEL_SEED", rand.IntN(1<<30))
	t.Logf("FENCECTL_MODEL_SEED=%d", seed)
	return rand.New(rand.NewPCG(uint64(seed), 0))
}

// bits is a number of up to n bits, in which small, large and round ones are as frequent as others.
func bits(r *rand.Rand, n int) int64 {
	v := r.Int64N(1 << r.IntN(n))
	switch r.IntN(4) {
	case 0:
		return 1<<n - 1 - v
	case 1:
		return 1 << r.IntN(n)
	default:
		return v
	}
}

func TestGoAndSQLAgreeOnTheArithmeticOfTokens(t *testing.T) {
	t.Parallel()
	r := chance(t)
	pool := pgtest.New(t)
	type parts struct {
		Epoch   int
		Counter int64
		Token   int64
		Text    string
	}
	var want []parts
	var epochs []int
	var counters []int64
	for len(want) < 5000 {
		epoch, counter := int(bits(r, 15)), bits(r, 48)
		token, err := fenced.NewToken(epoch, counter)
		if err != nil {
			if epoch != 0 || counter != 0 {
				t.Fatal(err)
			}
			continue
		}
		want = append(want, parts{token.Epoch(), token.Seq(), int64(token), token.String()})
		epochs, counters = append(epochs, epoch), append(counters, counter)
	}
	rows, err := pool.Query(t.Context(), `SELECT fencing.token_epoch(token), fencing.token_counter(token), token, fencing.token_text(token)
		FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS p (epoch, counter, n), LATERAL fencing.make_token(epoch, counter) AS token ORDER BY n`,
		epochs, counters)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[parts])
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("epoch %d, counter %d: Go makes %+v of it, SQL %+v", epochs[i], counters[i], want[i], got[i])
		}
	}
}

// A token that Go reads from text, the setting presents; and what the model calls no token, the setting reads as none.
func TestASettingMeansTheTokenThatItsTextIs(t *testing.T) {
	t.Parallel()
	r := chance(t)
	texts := append([]string{"-0", "+", "-", "1:34", "٣", "3\u00a0", "３", "1_000", "9223372036854775806", "-9223372036854775808"}, spelled...)
	for range 2000 {
		text := fmt.Sprint(bits(r, 63))
		for range r.IntN(3) {
			at := r.IntN(len(text) + 1)
			text = text[:at] + []string{"0", " ", "-", "+", ".", "x", "9", "\t", "\n", "e"}[r.IntN(10)] + text[at:]
		}
		texts = append(texts, text)
	}
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `CREATE FUNCTION public.reads(token text) RETURNS bigint[] LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM set_config('fencing.token', token, true);
			RETURN ARRAY[coalesce(fencing.presented(), 0), coalesce(fencing.presented('some fence'), 0)];
		END $$`)
	rows, err := pool.Query(t.Context(), "SELECT public.reads(token) FROM unnest($1::text[]) WITH ORDINALITY AS t (token, n) ORDER BY n", texts)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[[]int64])
	if err != nil {
		t.Fatal(err)
	}
	sign := func(n int64) int64 { return max(n, -1) } // no token is like another
	for i, text := range texts {
		want := (&session{state: state{token: text}}).presented()
		if sign(got[i][0]) != sign(want) || sign(got[i][1]) != sign(want) {
			t.Errorf("%q reads as %d, for a fence as %d, want %d", text, got[i][0], got[i][1], want)
		}
		if token, err := fenced.ParseToken(text); err == nil && !strings.Contains(text, ":") && got[i][0] != int64(token) {
			t.Errorf("%q reads as %d in SQL, as %d in Go", text, got[i][0], token)
		}
	}
}

// A fence template means one thing to all who read it: protect, the guard, the pattern by which limits find their fences,
// and the linter.
func TestATemplateMeansOneThing(t *testing.T) {
	t.Parallel()
	r := chance(t)
	pool := pgtest.New(t)
	pgtest.Exec(t, pool, `CREATE TABLE public.rows (id int PRIMARY KEY, "a b" text NOT NULL, n bigint NOT NULL, "x'""y" text NOT NULL)`)
	pieces := []string{"{id}", "{a b}", "{n}", `{x'"y}`, "{nowhere}", "{", "}", "{}", "a", ".", "*", `\`, "'", `"`, "%", "^$", "[a]", "(b|c)", "ä", " ", "/", "$1", "+?"}
	accepted := 0
	for range 150 {
		var template string
		for range 1 + r.IntN(5) {
			template += pieces[r.IntN(len(pieces))]
		}
		columns := (&catalog.Protection{Fence: template}).Columns()
		// Braces in pairs, with a name of a column of the table's between them.
		bare := regexp.MustCompile(`\{(id|a b|n|x'"y)\}`).ReplaceAllString(template, "")
		wellFormed := !strings.ContainsAny(bare, "{}")
		_, err := pool.Exec(t.Context(), "SELECT fencing.protect('public.rows', fence => $1)", template)
		if (err == nil) != wellFormed {
			t.Fatalf("template %q: protect says %v", template, err)
		}
		if err != nil || len(columns) == 0 {
			continue
		}
		accepted++
		values := map[string]string{"id": fmt.Sprint(r.IntN(9)), "a b": pieces[r.IntN(len(pieces))], "n": fmt.Sprint(-bits(r, 60)), `x'"y`: "{id}"}
		want := template
		for _, column := range columns {
			want = strings.Replace(want, "{"+column+"}", "\x00"+column+"\x00", 1)
		}
		for column, value := range values {
			want = strings.ReplaceAll(want, "\x00"+column+"\x00", value)
		}
		name := fenceOfARow(t, pool, values)
		if diff := cmp.Diff(want, name); diff != "" {
			t.Fatalf("template %q, row %v (-template +guard):\n%s", template, values, diff)
		}
		if !pgtest.Value[bool](t, pool, "SELECT $1 ~ fencing.fence_pattern($2)", name, template) {
			t.Fatalf("template %q: its name %q does not match its pattern %q", template, name, pgtest.Value[string](t, pool, "SELECT fencing.fence_pattern($1)", template))
		}
		// The literal part before the first column is part of every name.
		if literal, _, _ := strings.Cut(template, "{"); literal != "" && pgtest.Value[bool](t, pool, "SELECT $1 ~ fencing.fence_pattern($2)", "~"+name, template) {
			t.Fatalf("template %q: the name %q matches its pattern", template, "~"+name)
		}
	}
	if accepted < 20 {
		t.Errorf("only %d templates were tried", accepted)
	}
}

// fenceOfARow asks the guard: an unfenced insert is refused with the fence's name.
func fenceOfARow(t *testing.T, pool *pgxpool.Pool, values map[string]string) string {
	t.Helper()
	_, err := pool.Exec(t.Context(), `INSERT INTO public.rows (id, "a b", n, "x'""y") VALUES ($1::text::int, $2, $3::text::bigint, $4)`,
		values["id"], values["a b"], values["n"], values[`x'"y`])
	typed, ok := fenced.AsError(err).(*fenced.UnfencedError) //nolint:errorlint // AsError's own result, not a chain
	if !ok {
		t.Fatalf("an unfenced insert: %v", err)
	}
	if !json.Valid(typed.Key) {
		t.Errorf("key %q", typed.Key)
	}
	return typed.Fence
}
