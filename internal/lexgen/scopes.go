package main

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"

	"mlsd/lexicons"
)

// permissionSets are the permission sets (https://atproto.com/specs/permission), the least first.
// Each set includes the methods of the set before. Methods that services call are in no set.
var permissionSets = []string{"authRead", "authMessaging", "authFull"}

var lxmList = regexp.MustCompile(`"lxm": \[[^]]*\]`)

// generateScopes writes the methods of each permission set into the set's lexicon. It reads the
// line Scope in the pages beside the methods' lexicons.
func generateScopes(set schemas) (map[string][]byte, error) {
	methods := make([][]string, len(permissionSets))
	for _, sf := range set {
		m := methodOf(sf)
		if m == nil {
			continue
		}
		n, err := readNotes(lastSegment(m.nsid))
		if err != nil {
			return nil, err
		}
		least := slices.Index(permissionSets, n.scope)
		if least < 0 && n.scope != "none" {
			return nil, fmt.Errorf("the page beside the lexicon of %s names the scope %q, which is none of %v or none",
				m.nsid, n.scope, permissionSets)
		}
		for i := range methods {
			if least >= 0 && i >= least {
				methods[i] = append(methods[i], m.nsid)
			}
		}
	}
	files := map[string][]byte{}
	for i, name := range permissionSets {
		file := path.Join(path.Dir(lexicons.Pattern), name+".json")
		text, err := lexicons.Files.ReadFile(file)
		if err != nil {
			return nil, err
		}
		list, err := json.MarshalIndent(methods[i], "          ", "  ")
		if err != nil {
			return nil, err
		}
		files[path.Join("lexicons", file)] = lxmList.ReplaceAllLiteral(text, append([]byte(`"lxm": `), list...))
	}
	return files, nil
}
