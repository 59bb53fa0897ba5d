package generate

import (
	"fmt"
	"go/format"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fencectl/fencectl/fenced"
)

// fencedImport is the package that what is generated is built on.
const fencedImport = "github.com/fencectl/fencectl/fenced"

// A repository writes the Go of one table.
type repository struct {
	*wanted
	goPackage *goPackage
	queries   []*query
	fields    map[string]string // column to the field of sqlc's struct
	model     string            // the struct that a row is read into; "" when it is none
	imports   []goImport
	body      strings.Builder
	types     []string // that it declares
}

// repositoryOf makes the file of a table.
func repositoryOf(w *wanted, queries []*query, p *goPackage) (string, error) {
	r := &repository{wanted: w, goPackage: p, queries: queries, fields: map[string]string{}}
	r.imports = []goImport{{"", "context"}, {"", fencedImport}}
	if err := r.findFields(); err != nil {
		return "", err
	}
	r.repository()
	for _, q := range queries {
		if err := r.method(q); err != nil {
			return "", err
		}
	}
	for _, name := range append(r.types, "Queries."+r.name()) {
		if file, ok := p.declared[name]; ok {
			return "", wrong("table %s: %s is declared in %s already; give the table another name in Go: generate: {tables: {'%s': {name: ...}}}", w.Quoted, name, p.dir+"/"+file, w.Quoted)
		}
	}
	return p.file(merge(r.imports), r.body.String())
}

// file puts a file together.
func (p *goPackage) file(imports []goImport, body string) (string, error) {
	var b strings.Builder
	if p.build != "" {
		b.WriteString(p.build + "\n\n")
	}
	fmt.Fprintf(&b, "// %s\n\npackage %s\n\nimport (\n", header, p.name)
	for _, others := range []bool{false, true} { // those of the standard library come first
		for _, i := range imports {
			first, _, _ := strings.Cut(i.path, "/")
			if strings.Contains(first, ".") == others {
				fmt.Fprintf(&b, "\t%s %s\n", i.name, strconv.Quote(i.path))
			}
		}
		b.WriteString("\n")
	}
	b.WriteString(")\n\n" + body)
	formatted, err := format.Source([]byte(b.String()))
	if err != nil {
		return "", fmt.Errorf("the generated Go is not valid: %w\n%s", err, b.String())
	}
	return string(formatted), nil
}

func (r *repository) name() string { return "Fenced" + r.base }

func (r *repository) printf(format string, args ...any) { fmt.Fprintf(&r.body, format, args...) }

// findFields finds out how sqlc calls the columns: by the struct that a row is read into.
func (r *repository) findFields() error {
	for _, q := range r.queries {
		if q.op != opGet && q.op != opInsert {
			continue
		}
		m, _, err := r.goPackage.bind(q)
		if err != nil {
			return err
		}
		fields := r.goPackage.structs[strings.TrimPrefix(m.result.text, "*")]
		if len(fields) == len(r.Columns) {
			r.model = m.result.text
			for i, c := range r.Columns {
				r.fields[c.Name] = fields[i].name
			}
		}
		return nil
	}
	return nil
}

// repository declares the type and how one is made.
func (r *repository) repository() {
	db, member, take := "", "", ""
	if r.goPackage.argument {
		db, member, take = "db DBTX, ", "\tdb DBTX\n", ", db: db"
	}
	var rule string
	switch {
	case r.row() && r.reentrant():
		rule = "// Each row has a fence of its own: a write is refused when the row has accepted a newer token."
	case r.row():
		rule = "// Each row has a fence of its own, and takes a token once: a write is refused when the row has accepted this token or a newer one."
	case r.template():
		rule = fmt.Sprintf("// The rows are under the fences %s: the grant is for one of them. Claim it before the first read.", r.Fence)
	default:
		rule = fmt.Sprintf("// The table is under the fence %s: the grant is for that lock. Claim it before the first read.", r.Fence)
	}
	rule = strings.Join(strings.Fields(rule), " ")
	r.types = append(r.types, r.name())
	r.printf(`// %[1]s reads and writes the table %[2]s under one grant of a lock.
//
%[3]s
//
// Its errors are fenced.ErrStale (a *fenced.StaleError, with both tokens) when the lock has passed to a newer holder, fenced.ErrNotFound when
// there is no such row, and the other errors of package fenced; errors of the database, such as a violated constraint, come as they are.
type %[1]s struct {
	queries *Queries
%[4]s	grant fenced.Grant
}

// %[1]s is a repository of the table %[2]s that writes under the grant: in the transaction of fenced.Run, or on a pool or a connection,
// where each write is a transaction of its own and takes one round trip.
func (q *Queries) %[1]s(%[5]sgrant fenced.Grant) *%[1]s {
	return &%[1]s{queries: q%[6]s, grant: grant}
}

`, r.name(), strings.Join(strings.Fields(r.Quoted), " "), rule, member, db, take)
	if !r.row() {
		r.claimFence()
	}
}

// claimFence is the method that raises a named fence.
func (r *repository) claimFence() {
	db, kind, claim := "r.queries.db", "DB", "Claim"
	if r.goPackage.argument {
		db = "r.db"
	}
	if r.goPackage.standard {
		kind, claim = "SQLDB", "ClaimSQL"
	}
	r.printf(`// Claim raises the fence to the grant's token, and waits for older holders' transactions: from then on they cannot write, and all that they
// have written is there to be read. Call it once for a grant, before the first read. It is a transaction of its own: the repository must be
// on a pool or a connection.
func (r *%s) Claim(ctx context.Context) error {
	db, ok := %s.(fenced.%s)
	if !ok {
		return errFencedClaim
	}
	return fenced.%s(ctx, db, r.grant)
}

`, r.name(), db, kind, claim)
}

// A call is how a method of the repository calls one of sqlc's.
type call struct {
	method   *method
	bindings map[string]binding
	keys     []field           // the method's parameters
	given    map[string]string // parameter of the query to expression
	values   []field
}

func (r *repository) call(q *query) (*call, error) {
	m, bindings, err := r.goPackage.bind(q)
	if err != nil {
		return nil, err
	}
	c := &call{method: m, bindings: bindings, given: map[string]string{}}
	taken := map[string]bool{"ctx": true, "r": true, "row": true, "err": true, "written": true, "inserted": true, "values": true, "applied": true, "stored": true, "fence": true, "context": true, "fenced": true}
	for _, b := range bindings {
		for _, i := range b.typ.imports {
			name := i.name
			if name == "" {
				name = i.path[strings.LastIndexByte(i.path, '/')+1:]
			}
			taken[name] = true
		}
	}
	for _, a := range q.key {
		v := variable(a.column, taken)
		c.given[a.param] = v
		c.keys = append(c.keys, field{v, bindings[a.param].typ})
	}
	names := map[string]bool{}
	for _, a := range q.values {
		name := exported(r.fieldOf(a, bindings[a.param]))
		for names[name] {
			name += "_"
		}
		names[name] = true
		c.given[a.param] = "values." + name
		c.values = append(c.values, field{name, bindings[a.param].typ})
	}
	if q.op == opPartial && len(q.values) == 1 {
		a := q.values[0]
		name := a.column
		if name == "" {
			name = a.param
		}
		v := variable(name, taken)
		c.given[a.param] = v
		c.values[0].name = v
	}
	return c, nil
}

// fieldOf is the Go name of a value: what sqlc calls its column, or its parameter.
func (r *repository) fieldOf(a argument, b binding) string {
	if name, ok := r.fields[a.column]; ok && a.column != "" {
		return name
	}
	if b.field != "" {
		return b.field
	}
	return camel(a.param)
}

// expression is the call of sqlc's method.
func (r *repository) expression(q *query, c *call) string {
	var args []string
	for i, param := range c.method.params {
		var members []string
		scalar := ""
		for _, name := range slices.Sorted(maps.Keys(c.bindings)) {
			b := c.bindings[name]
			if b.index != i {
				continue
			}
			value := c.given[name]
			switch name {
			case tokenParam:
				r.use(b.typ)
				value = wrap(b.typ, "r.grant.Token()", "int64", "Int64")
			case fenceParam:
				r.use(b.typ)
				value = wrap(b.typ, "r.grant.Name()", "string", "String")
			}
			if b.field == "" {
				scalar = value
				continue
			}
			members = append(members, b.field+": "+value+",\n")
		}
		if scalar != "" {
			args = append(args, scalar)
			continue
		}
		// In the order of sqlc's struct, which is stable.
		fields := r.goPackage.structs[strings.TrimPrefix(param.typ.text, "*")]
		slices.SortFunc(members, func(a, b string) int { return position(fields, a) - position(fields, b) })
		literal := strings.TrimPrefix(param.typ.text, "*") + "{\n" + strings.Join(members, "") + "}"
		if strings.HasPrefix(param.typ.text, "*") {
			literal = "&" + literal
		}
		args = append(args, literal)
	}
	if r.goPackage.argument {
		args = append([]string{"r.db"}, args...)
	}
	return fmt.Sprintf("r.queries.%s(%s)", q.name, strings.Join(append([]string{"ctx"}, args...), ", "))
}

func position(fields []field, member string) int {
	name, _, _ := strings.Cut(member, ":")
	return slices.IndexFunc(fields, func(f field) bool { return f.name == name })
}

// wrap is a value as the type that sqlc has given its parameter.
func wrap(t goType, value, basic, member string) string {
	switch {
	case t.text == "string" && basic == "string":
		return value
	case strings.HasSuffix(t.text, ".Int8"), strings.HasSuffix(t.text, ".Text"), strings.HasPrefix(t.text, "sql.Null"):
		return fmt.Sprintf("%s{%s: %s(%s), Valid: true}", t.text, member, basic, value)
	}
	return fmt.Sprintf("%s(%s)", t.text, value)
}

// unwrap is the opposite.
func unwrap(t goType, value, basic, member string) string {
	switch {
	case t.text == basic:
		return value
	case strings.HasSuffix(t.text, ".Int8"), strings.HasSuffix(t.text, ".Text"), strings.HasPrefix(t.text, "sql.Null"):
		return value + "." + member
	case t.text == "*"+basic:
		return "*" + value
	}
	return fmt.Sprintf("%s(%s)", basic, value)
}

// asModel is how to make what a query returns the table's own struct: sqlc makes another one, with the same fields, of a row that comes out of a
// WITH.
func (r *repository) asModel(result goType) (typ, conversion string) {
	same := func(a, b field) bool { return a.name == b.name && a.typ.text == b.typ.text }
	mine, model := strings.TrimPrefix(result.text, "*"), strings.TrimPrefix(r.model, "*")
	pointer := strings.HasPrefix(result.text, "*")
	fields := r.goPackage.structs[mine]
	if mine == model || pointer != strings.HasPrefix(r.model, "*") || len(fields) == 0 || !slices.EqualFunc(fields, r.goPackage.structs[model], same) {
		return result.text, "%s"
	}
	if pointer {
		return r.model, "(" + r.model + ")(%s)"
	}
	return r.model, model + "(%s)"
}

func (r *repository) use(types ...goType) {
	for _, t := range types {
		r.imports = append(r.imports, t.imports...)
	}
}

// parameters are a method's own, from the context on.
func parameters(fields ...field) string {
	text := "ctx context.Context"
	for _, f := range fields {
		text += ", " + f.name + " " + f.typ.text
	}
	return text
}

func passed(fields []field) string {
	text := "ctx"
	for _, f := range fields {
		text += ", " + f.name
	}
	return text
}

func (r *repository) method(q *query) error {
	c, err := r.call(q)
	if err != nil {
		return err
	}
	if q.op == opFence {
		return r.refusal(q, c)
	}
	params := slices.Clone(c.keys)
	for _, key := range c.keys {
		r.use(key.typ)
	}
	values := len(c.values) > 0
	if values && (q.op != opPartial || len(c.values) > 1) {
		params = append(params, r.valuesType(q, c))
	} else if values {
		params = append(params, c.values[0])
		r.use(c.values[0].typ)
	}
	r.use(c.method.result)
	run := r.expression(q, c)
	refusal := "r.refusal(" + passed(c.keys) + ")"
	result, conversion := r.asModel(c.method.result)
	switch q.op {
	case opGet:
		r.printf(`// Get reads a row. fenced.ErrNotFound says that there is none.
func (r *%s) Get(%s) (%s, error) {
	row, err := %s
	return row, fencedError(err)
}

`, r.name(), parameters(params...), result, run)
	case opClaim:
		r.printf(`// Claim raises the fence of a row to the grant's token, and reads the row: from then on no older holder can write it. Call it before the read
// that a write depends on.
func (r *%s) Claim(%s) (row %s, err error) {
	_, err = fencedWrite(r.grant, false, func() (int64, error) {
		row, err = %s
		return fencedOne(err)
	}, func() error { return %s })
	return row, err
}

`, r.name(), parameters(params...), result, run, refusal)
	case opInsert:
		r.insert(q, "Insert inserts a row, and returns it as it was stored.", params, result, conversion, run)
	case opUpsert:
		if r.template() {
			r.insert(q, "Upsert inserts a row, or writes the columns of the row that has its key.", params, result, conversion, run)
			break
		}
		r.printf(`// Upsert inserts a row, or writes the columns of the row that has its key.
func (r *%s) Upsert(%s) (row %s, err error) {
	_, err = fencedWrite(r.grant, false, func() (int64, error) {
		written, err := %s
		row = %s
		return fencedOne(err)
	}, func() error { return fencedThere(%s) })
	return row, err
}

`, r.name(), parameters(params...), result, run, fmt.Sprintf(conversion, "written"), refusal)
	case opUpdate, opDelete:
		what := "Update writes all columns of a row but its key."
		if len(r.fenceColumns()) > 0 && q.op == opUpdate {
			what = "Update writes all columns of a row but its key and those that name its fence."
		}
		if q.op == opDelete {
			what = "Delete deletes a row."
		}
		r.printf(`// %s
func (r *%s) %s(%s) error {
	_, err := fencedWrite(r.grant, false, func() (int64, error) {
		return %s
	}, func() error { return %s })
	return err
}

`, what, r.name(), q.method, parameters(params...), run, refusal)
	case opPartial:
		r.partial(q, params, run, refusal)
	case opFence: // it is the repository's own, see above
	}
	return nil
}

// insert is a method that inserts. One that has no effect under a template wanted to write a row of another fence.
func (r *repository) insert(q *query, doc string, params []field, result, conversion, run string) {
	if !r.template() {
		r.printf(`// %s
func (r *%s) %s(%s) (row %s, err error) {
	if err := fencedEnded(r.grant); err != nil {
		return row, err
	}
	inserted, err := %s
	return %s, fenced.AsError(err)
}

`, doc, r.name(), q.method, parameters(params...), result, run, fmt.Sprintf(conversion, "inserted"))
		return
	}
	r.printf(`// %s The row must belong to the grant's fence.
func (r *%s) %s(%s) (row %s, err error) {
	if err := fencedEnded(r.grant); err != nil {
		return row, err
	}
	row, err = %s
	if rows, err := fencedOne(err); err != nil || rows > 0 {
		return row, err
	}
	return row, fencedElsewhere(r.grant, %q, fenced.Refusal{Schema: %q, Table: %q})
}

`, doc, r.name(), q.method, parameters(params...), result, run, r.Fence, r.Schema, r.table.Name)
}

func (r *repository) partial(q *query, params []field, run, refusal string) {
	var set []string
	for _, a := range q.update.Set {
		set = append(set, a.Column)
	}
	what := strings.Join(strings.Fields(fmt.Sprintf("%s sets %s of a row.", q.method, strings.Join(set, ", "))), " ")
	if q.update.Where == "" {
		r.printf(`// %s
func (r *%s) %s(%s) error {
	_, err := fencedWrite(r.grant, false, func() (int64, error) {
		return %s
	}, func() error { return %s })
	return err
}

`, what, r.name(), q.method, parameters(params...), run, refusal)
		return
	}
	r.printf(`// %s It is applied where
//
//	%s
//
// applied is false, without an error, when the row is there and does not meet that.
func (r *%s) %s(%s) (applied bool, err error) {
	return fencedWrite(r.grant, true, func() (int64, error) {
		return %s
	}, func() error { return %s })
}

`, what, strings.Join(strings.Fields(q.update.Where), " "), r.name(), q.method, parameters(params...), run, refusal)
}

// valuesType declares the struct of a method's values.
func (r *repository) valuesType(q *query, c *call) field {
	name := q.name + "Values"
	r.types = append(r.types, name)
	r.printf("// %s are the values of %s.%s.\ntype %s struct {\n", name, r.name(), q.method, name)
	for _, f := range c.values {
		r.printf("\t%s %s\n", f.name, f.typ.text)
		r.use(f.typ)
	}
	r.printf("}\n\n")
	return field{name: "values", typ: goType{text: name}}
}

// refusal is the second look after a write without effect.
func (r *repository) refusal(q *query, c *call) error {
	var key []string
	for i, name := range r.Key {
		key = append(key, fmt.Sprintf("%q: %s", name, c.keys[i].name))
	}
	refusal := fmt.Sprintf("fenced.Refusal{Schema: %q, Table: %q, Key: fencedKey(map[string]any{%s})}", r.Schema, r.table.Name, strings.Join(key, ", "))
	r.printf("// refusal says why a write of a row had no effect. It is nil when the row is there, and its fence accepts the token.\n")
	r.printf("func (r *%s) refusal(%s) error {\n", r.name(), parameters(c.keys...))
	run := r.expression(q, c)
	switch {
	case r.row():
		r.printf(`	stored, err := %s
	if err != nil {
		return fencedError(err)
	}
	return fencedStale(r.grant, %t, %s, %s)
}
`, run, !r.reentrant(), unwrap(c.method.result, "stored", "int64", "Int64"), strings.Replace(refusal, ", Key:", fmt.Sprintf(", Column: %q, Key:", fenced.ColumnName), 1))
	case r.template():
		r.printf(`	fence, err := %s
	if err != nil {
		return fencedError(err)
	}
	return fencedElsewhere(r.grant, %s, %s)
}
`, run, unwrap(c.method.result, "fence", "string", "String"), refusal)
	default:
		r.printf(`	_, err := %s
	return fencedError(err)
}
`, run)
	}
	return nil
}
