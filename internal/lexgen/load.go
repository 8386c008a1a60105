package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/lexicon"

	"mlsd/lexicons"
)

// schemas are lexicons in the order of their NSIDs.
type schemas []*schema

// schema is one lexicon.
type schema struct {
	*lexicon.SchemaFile
	// errors are the errors that a method declares. lexicon.SchemaSubscription has no field for them.
	errors []lexicon.SchemaError
	trees  map[string]tree // the definitions as they stand in source
	source []byte
}

// betweenClients says that clients write it for clients: a record, or the content of messages.
func (sf *schema) betweenClients() bool {
	switch sf.Defs["main"].Inner.(type) {
	case lexicon.SchemaRecord, lexicon.SchemaObject:
		return true
	}
	return false
}

// defs returns all definitions by full name.
func (s schemas) defs() map[string]lexicon.SchemaDef {
	out := map[string]lexicon.SchemaDef{}
	for _, sf := range s {
		for name, def := range sf.Defs {
			out[sf.ID+"#"+name] = def
		}
	}
	return out
}

// load reads every lexicon that defines a method or its types. Code and the reference are generated
// from these.
func load(files fs.FS) (schemas, error) {
	set, err := loadAll(files)
	return slices.DeleteFunc(set, func(sf *schema) bool { return sf.betweenClients() }), err
}

// loadAll reads every lexicon but permission sets, which only name others. It checks that
// the path of each file matches its NSID.
func loadAll(files fs.FS) (schemas, error) {
	names, err := fs.Glob(files, lexicons.Pattern)
	if err != nil {
		return nil, err
	}
	var set schemas
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		sf, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if want := lexicons.Path(sf.ID); name != want {
			return nil, fmt.Errorf("%s: should be named %s", name, want)
		}
		if _, is := sf.Defs["main"].Inner.(lexicon.SchemaPermissionSet); !is {
			set = append(set, sf)
		}
	}
	slices.SortFunc(set, func(a, b *schema) int { return strings.Compare(a.ID, b.ID) })
	return set, nil
}

func parse(data []byte) (*schema, error) {
	sf := &schema{SchemaFile: new(lexicon.SchemaFile), source: data}
	var method struct {
		Defs struct {
			Main struct{ Errors []lexicon.SchemaError }
		}
	}
	var trees struct{ Defs map[string]tree }
	err := errors.Join(json.Unmarshal(data, sf.SchemaFile), json.Unmarshal(data, &method), json.Unmarshal(data, &trees))
	if err != nil {
		return nil, err
	}
	sf.errors, sf.trees = method.Defs.Main.Errors, trees.Defs
	if err := sf.FinishParse(); err != nil {
		return nil, err
	}
	return sf, sf.CheckSchema()
}

// definition is an object that a lexicon defines besides its method.
type definition struct {
	lexicon.SchemaObject
	name, doc string
	full      string // its name in other lexicons
}

// definitions returns the definitions of a lexicon, by name.
func (sf *schema) definitions() (all []definition, err error) {
	for _, name := range slices.Sorted(maps.Keys(sf.Defs)) {
		if name == "main" {
			continue
		}
		object, ok := sf.Defs[name].Inner.(lexicon.SchemaObject)
		if !ok {
			return nil, errUnsupported("a definition that is no object", name)
		}
		all = append(all, definition{object, name, text(object.Description), sf.ID + "#" + name})
	}
	return all, nil
}

// requiredFirst returns the names of properties, the required ones first.
func requiredFirst(props map[string]lexicon.SchemaDef, required []string) []string {
	must := slices.Clone(required)
	slices.Sort(must)
	optional := slices.DeleteFunc(slices.Sorted(maps.Keys(props)), func(name string) bool {
		return slices.Contains(required, name)
	})
	return append(must, optional...)
}
