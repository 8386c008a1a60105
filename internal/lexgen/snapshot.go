package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// acceptedBreaks maps breaking changes that were made on purpose to the reason why no client is
// harmed. The key is the text that breaking returns for the change.
func acceptedBreaks() map[string]string {
	return map[string]string{
		"blue.catbird.mls.getMessages.type: field removed": "it is messageType now: Go generators cannot take type, and " +
			"no released version had it",
		"blue.catbird.mls.getGroupInfo output.groupInfo: maxLength changed from 1048576 to 4194304": "only a group of a " +
			"post-quantum cipher suite has a larger one, and no client from before has joined one",
	}
}

// snapshot returns the lexicons in one JSON object by NSID.
func snapshot(set schemas) ([]byte, error) {
	all := map[string]json.RawMessage{}
	for _, sf := range set {
		all[sf.ID] = sf.source
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(all); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// readSnapshot is the inverse of snapshot.
func readSnapshot(data []byte) (schemas, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	var set schemas
	for _, nsid := range slices.Sorted(maps.Keys(all)) {
		sf, err := parse(all[nsid])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", nsid, err)
		}
		set = append(set, sf)
	}
	return set, nil
}

// landSnapshot records the lexicons, unless they break a client of the recorded lexicons.
func landSnapshot(set schemas, path string, out io.Writer) error {
	landed, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		before, err := readSnapshot(landed)
		if err != nil {
			return err
		}
		if broken := unaccepted(before, set); len(broken) > 0 {
			return fmt.Errorf("these changes break clients of the landed lexicons:\n  %s", strings.Join(broken, "\n  "))
		}
	}
	data, err := snapshot(set)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d lexicons\n", landedPath, len(set))
	return os.WriteFile(path, data, 0o644)
}

// unaccepted returns the breaking changes that are not among acceptedBreaks.
func unaccepted(before, after schemas) []string {
	accepted := acceptedBreaks()
	return slices.DeleteFunc(breaking(before, after), func(c string) bool { return accepted[c] != "" })
}
