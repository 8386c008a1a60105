package mls

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSuitesOfPages: the reference names exactly the suites of RFC 9420 that are accepted, and the
// page of libraries the others (T16).
func TestSuitesOfPages(t *testing.T) {
	t.Parallel()
	section := func(page string) string {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(text), "\n## Cipher suites\n")
		if !found {
			t.Fatalf("%s has no cipher suites", page)
		}
		section, _, _ := strings.Cut(rest, "\n## ")
		return section
	}
	named := func(page string) (suites []CipherSuite) {
		for _, match := range regexp.MustCompile("`(MLS_[A-Za-z0-9_]+)`").FindAllStringSubmatch(section(page), -1) {
			suite, ok := ParseCipherSuite(match[1])
			if !ok {
				t.Errorf("%s names %s", page, match[1])
			}
			suites = append(suites, suite)
		}
		slices.Sort(suites)
		return suites
	}
	var ofRFC, others []CipherSuite
	for suite := range suites {
		if suite <= SuiteP384AES256 {
			ofRFC = append(ofRFC, suite)
		} else {
			others = append(others, suite)
		}
	}
	slices.Sort(ofRFC)
	slices.Sort(others)
	if got := named("../docs/clients/api/TYPES.md"); !slices.Equal(got, ofRFC) || len(got) != 7 {
		t.Errorf("the reference names %v, want %v", got, ofRFC)
	}
	postQuantum := slices.DeleteFunc(named("../docs/clients/MLS-LIBRARIES.md"),
		func(s CipherSuite) bool { return s <= SuiteP384AES256 })
	if !slices.Equal(postQuantum, others) {
		t.Errorf("the page of libraries names %v, want %v", postQuantum, others)
	}
}
