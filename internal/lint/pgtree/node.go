package pgtree

import (
	"maps"
	"slices"
)

// nodeOf makes a Node of a JSON object: {"UpdateStmt": {…}} where any kind may stand, else the fields alone.
func nodeOf(object map[string]any) Node {
	if len(object) == 1 {
		for name, value := range object {
			if fields, ok := value.(map[string]any); ok && name[0] >= 'A' && name[0] <= 'Z' {
				return Node{Kind: name, fields: fields}
			}
		}
	}
	return Node{fields: object}
}

// field makes a Node of a field. What can be of one kind alone does not say of which; only that of a CALL is looked for by its kind.
func field(name string, object map[string]any) Node {
	n := nodeOf(object)
	if name == "funccall" {
		n.Kind = "FuncCall"
	}
	return n
}

// There says whether the node is there.
func (n Node) There() bool { return n.fields != nil }

// Has says whether the node has a field of this name that is not empty, 0 or false.
func (n Node) Has(name string) bool { return n.fields[name] != nil }

// Text is a field that is a text, or one of the words of an enumeration.
func (n Node) Text(name string) string {
	text, _ := n.fields[name].(string)
	return text
}

// Bool is a field that is true or false.
func (n Node) Bool(name string) bool {
	is, _ := n.fields[name].(bool)
	return is
}

// Int is a field that is a number.
func (n Node) Int(name string) int {
	number, _ := n.fields[name].(float64)
	return int(number)
}

// Location is the place of the node in the text, in bytes; 0 where the parser has kept none.
func (n Node) Location() int { return max(0, n.Int("location")) }

// Node is a field that is a node.
func (n Node) Node(name string) Node {
	object, ok := n.fields[name].(map[string]any)
	if !ok {
		return Node{}
	}
	return field(name, object)
}

// List is a field that is a list of nodes. A node of kind List that stands for its items is taken for them.
func (n Node) List(name string) []Node {
	items, ok := n.fields[name].([]any)
	if !ok {
		if only := n.Node(name); only.Kind == "List" {
			return only.List("items")
		}
		return nil
	}
	nodes := make([]Node, 0, len(items))
	for _, item := range items {
		if object, ok := item.(map[string]any); ok {
			nodes = append(nodes, nodeOf(object))
		}
	}
	return nodes
}

// Words is a field that is a list of names, as those of a function: {"fencing", "present"}.
func (n Node) Words(name string) []string {
	var words []string
	for _, item := range n.List(name) {
		if item.Kind == "String" {
			words = append(words, item.Text("sval"))
		}
	}
	return words
}

// Walk calls visit with the node and everything below it, in the order of the text where that is the order of the fields' names, and
// does not go below a node for which visit returns false.
func (n Node) Walk(visit func(Node) bool) {
	if !n.There() || !visit(n) {
		return
	}
	for _, name := range sortedKeys(n.fields) {
		walk(name, n.fields[name], visit)
	}
}

// Below is Walk without the node itself.
func (n Node) Below(visit func(Node) bool) {
	first := true
	n.Walk(func(n Node) bool {
		if first {
			first = false
			return true
		}
		return visit(n)
	})
}

func walk(name string, value any, visit func(Node) bool) {
	switch value := value.(type) {
	case map[string]any:
		field(name, value).Walk(visit)
	case []any:
		for _, item := range value {
			walk("", item, visit)
		}
	}
}

func sortedKeys(object map[string]any) []string { return slices.Sorted(maps.Keys(object)) }
