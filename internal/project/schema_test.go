package project_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/xeipuuv/gojsonschema"
	"go.yaml.in/yaml/v3"

	"github.com/fencectl/fencectl/internal/project"
)

const schemaFile = "../../schema/fencectl.schema.json"

func readSchema(t *testing.T) (*gojsonschema.Schema, map[string]any) {
	t.Helper()
	content, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	loader := gojsonschema.NewSchemaLoader()
	loader.Validate = true // the schema itself, too
	schema, err := loader.Compile(gojsonschema.NewBytesLoader(content))
	if err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	return schema, document
}

// Each place in the file where keys are known, with a document that has an unknown one there.
func TestTheSchemaKnowsTheKeysThatTheReaderKnows(t *testing.T) {
	t.Parallel()
	_, schema := readSchema(t)
	for document, place := range map[string][]string{
		"xyzzy: 1":                                           {},
		"audit: {xyzzy: 1}":                                  {"definitions", "audit"},
		"audit: {exempt: [{xyzzy: 1}]}":                      {"definitions", "exemption"},
		"audit: {severities: {xyzzy: 1}}":                    {"definitions", "audit", "properties", "severities"},
		"lint: {xyzzy: 1}":                                   {"definitions", "lint"},
		"lint: {severities: {xyzzy: 1}}":                     {"definitions", "lint", "properties", "severities"},
		"lint: {presented: [{xyzzy: 1}]}":                    {"definitions", "presented"},
		"generate: {xyzzy: 1}":                               {"definitions", "generate"},
		"generate: {tables: {t: {xyzzy: 1}}}":                {"definitions", "generatedTable"},
		"generate: {tables: {t: {updates: {U: {xyzzy: }}}}}": {"definitions", "update"},
		"schema: {xyzzy: 1}":                                 {"definitions", "schema"},
		"environments: {x: {xyzzy: 1}}":                      {"definitions", "environment"},
		"environments: {x: {audit: {xyzzy: 1}}}":             {"definitions", "audit"},
		"environments: {x: {audit: {exempt: [{xyzzy: }]}}}":  {"definitions", "exemption"},
	} {
		var unknown *project.Error
		if _, err := project.Parse("fencectl.yaml", []byte(document)); !errors.As(err, &unknown) || len(unknown.Known) == 0 {
			t.Errorf("%s: %v is not about an unknown key", document, err)
			continue
		}
		there := schema
		for _, name := range place {
			there, _ = there[name].(map[string]any)
		}
		if allowed, ok := there["additionalProperties"].(bool); !ok || allowed {
			t.Errorf("%s: the schema allows unknown keys", document)
		}
		properties, _ := there["properties"].(map[string]any)
		var keys []string
		for key := range properties {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		if diff := cmp.Diff(unknown.Known, keys); diff != "" {
			t.Errorf("%s: schema/fencectl.schema.json is to have the same keys (-reader +schema)\n%s", document, diff)
		}
	}
}

// Whatever the reader accepts is valid by the schema, and whatever it refuses is not, but for what a schema cannot say.
func TestTheSchemaAndTheReaderAgree(t *testing.T) {
	t.Parallel()
	schema, _ := readSchema(t)
	beyond := func(err error) bool {
		return slices.ContainsFunc([]string{"is there twice", "more than one document", "did not find", "is not a table name", "is no pattern of paths"}, func(text string) bool {
			return strings.Contains(err.Error(), text)
		})
	}
	accepted, refused := 0, 0
	for content := range documents() {
		var document yaml.Node
		_, readErr := project.Parse("fencectl.yaml", []byte(content))
		if err := yaml.Unmarshal([]byte(content), &document); readErr != nil && (err != nil || beyond(readErr)) {
			continue
		}
		result, err := schema.Validate(gojsonschema.NewGoLoader(asJSON(t, &document)))
		if err != nil {
			t.Fatalf("%q: %v", content, err)
		}
		switch {
		case result.Valid() != (readErr == nil):
			t.Errorf("%q: the reader says %v, the schema %v", content, readErr, result.Errors())
		case result.Valid():
			accepted++
		default:
			refused++
		}
	}
	if accepted < 10 || refused < 15 {
		t.Errorf("only %d accepted and %d refused documents were compared", accepted, refused)
	}
}

// asJSON is what an editor hands to the validation of a YAML file: dates are texts.
func asJSON(t *testing.T, node *yaml.Node) any {
	t.Helper()
	switch node.Kind {
	case yaml.DocumentNode:
		return asJSON(t, node.Content[0])
	case yaml.AliasNode:
		return asJSON(t, node.Alias)
	case yaml.MappingNode:
		object := map[string]any{}
		for i := 0; i < len(node.Content); i += 2 {
			object[node.Content[i].Value] = asJSON(t, node.Content[i+1])
		}
		return object
	case yaml.SequenceNode:
		array := []any{}
		for _, item := range node.Content {
			array = append(array, asJSON(t, item))
		}
		return array
	case yaml.ScalarNode:
		if node.Tag == "!!timestamp" {
			return node.Value
		}
		var value any
		if err := node.Decode(&value); err != nil {
			t.Fatal(err)
		}
		return value
	default: // nothing but comments
		return nil
	}
}
