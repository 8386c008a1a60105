package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
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
	// subscriptionErrors are the errors that a subscription declares. lexicon.SchemaSubscription
	// has no field for them.
	subscriptionErrors []lexicon.SchemaError
	source             []byte
}

// load reads every lexicon that defines a method or types. It checks that the path of each file
// matches its NSID.
func load(files fs.FS) (schemas, error) {
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
		switch sf.Defs["main"].Inner.(type) {
		case lexicon.SchemaPermissionSet: // it only names methods
			continue
		case lexicon.SchemaRecord: // clients write it at a PDS, and serviceauth reads it
			continue
		}
		set = append(set, sf)
	}
	slices.SortFunc(set, func(a, b *schema) int { return strings.Compare(a.ID, b.ID) })
	return set, nil
}

func parse(data []byte) (*schema, error) {
	sf := &schema{SchemaFile: new(lexicon.SchemaFile), source: data}
	if err := json.Unmarshal(data, sf.SchemaFile); err != nil {
		return nil, err
	}
	if err := sf.FinishParse(); err != nil {
		return nil, err
	}
	if _, ok := sf.Defs["main"].Inner.(lexicon.SchemaSubscription); ok {
		var raw struct {
			Defs struct {
				Main struct{ Errors []lexicon.SchemaError }
			}
		}
		if err := json.Unmarshal(data, &raw); err != nil {
			return nil, err
		}
		sf.subscriptionErrors = raw.Defs.Main.Errors
	}
	return sf, sf.CheckSchema()
}
