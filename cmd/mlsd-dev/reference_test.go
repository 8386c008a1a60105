package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/errorlist"
	"mlsd/api/mlsapi"
)

// testReference runs the example of every page of the API's reference: after the preparation, with
// accounts of its own. The answer must be the one on the page.
func (c devClient) testReference(t *testing.T) {
	c.t = t
	for _, tool := range []string{"bash", "curl", "sed", "tr"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the examples need %s: %v", tool, err)
		}
	}
	c.dev("reset", "{}")
	preparation := blocks(page(t, "docs/clients/api/README.md"))["bash"]
	for _, m := range mlsapi.Methods() {
		name := m.NSID[strings.LastIndexByte(m.NSID, '.')+1:]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			example := blocks(page(t, "docs/clients/api/"+name+".md"))
			if !strings.Contains(example["bash"], "/xrpc/"+m.NSID) {
				t.Fatalf("the example does not call the method: %q", example["bash"])
			}
			shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", preparation+example["bash"])
			shell.Env = append(shell.Environ(), "MLSD="+c.url)
			output, err := shell.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			if shown := example["text"]; shown != "" {
				checkText(t, shown, string(output))
				return
			}
			var shown, got any
			if err := json.Unmarshal([]byte(example["json"]), &shown); err != nil {
				t.Fatalf("the page's answer: %v", err)
			}
			if err := json.Unmarshal(output, &got); err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			if err := same("answer", shown, got); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}

const ellipsis = "…"

// checkText demands that the parts of a shown text, between its ellipses and line breaks, come one
// after the other.
func checkText(t *testing.T, shown, got string) {
	t.Helper()
	rest := got
	for _, part := range strings.FieldsFunc(shown, func(r rune) bool { return r == '…' || r == '\n' }) {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			t.Fatalf("no %q in what is left of\n%s", part, got)
		}
		rest = after
	}
}

// same compares an answer with the shown one. A shown text with an ellipsis stands for any, and a
// shown time for any time. A member or an element that is only an ellipsis stands for further ones.
func same(where string, shown, got any) error {
	switch want := shown.(type) {
	case map[string]any:
		return sameObject(where, want, got)
	case []any:
		return sameList(where, want, got)
	case string:
		text, ok := got.(string)
		_, notTime := syntax.ParseDatetime(want)
		_, gotNoTime := syntax.ParseDatetime(text)
		if ok && (text == want || strings.Contains(want, ellipsis) || notTime == nil && gotNoTime == nil) {
			return nil
		}
	default:
		if got == shown {
			return nil
		}
	}
	return fmt.Errorf("%s is %v, and the page shows %v", where, got, shown)
}

func sameObject(where string, want map[string]any, got any) error {
	object, ok := got.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is %v, and the page shows an object", where, got)
	}
	_, shortened := want[ellipsis]
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if _, there := want[name]; !there && !shortened {
			return fmt.Errorf("%s has %s, which the page does not show", where, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if name == ellipsis {
			continue
		}
		value, there := object[name]
		if !there {
			return fmt.Errorf("%s has no %s", where, name)
		}
		if err := same(where+"."+name, want[name], value); err != nil {
			return err
		}
	}
	return nil
}

func sameList(where string, want []any, got any) error {
	list, ok := got.([]any)
	shortened := len(want) > 0 && want[len(want)-1] == any(ellipsis)
	if shortened {
		want = want[:len(want)-1]
	}
	if !ok || len(list) < len(want) || len(list) > len(want) && !shortened {
		return fmt.Errorf("%s is %v, and the page shows %d elements", where, got, len(want))
	}
	for i := range want {
		if err := same(fmt.Sprintf("%s[%d]", where, i), want[i], list[i]); err != nil {
			return err
		}
	}
	return nil
}

// Every error that a method's lexicon declares is on its page, with the status that the server
// answers with and with advice. The index has the errors of every method.
func TestReferenceErrors(t *testing.T) {
	t.Parallel()
	errors := 0
	row := func(of, status, name, more string) {
		t.Helper()
		if !regexp.MustCompile("(?m)^\\| " + status + " \\| `" + name + "` \\| " + more +
			`[^|]{5,} \| [^|]{5,} \|$`).MatchString(page(t, "docs/clients/api/"+of+".md")) {
			t.Errorf("%s.md has no row of %s with its status, when it comes, and what to do", of, name)
		}
	}
	for _, m := range mlsapi.Methods() {
		for _, name := range m.Errors {
			errors++
			e, _ := errorlist.Find(name)
			status := fmt.Sprint(e.Status)
			if m.Kind == mlsapi.Subscription {
				status = "frame"
			}
			row(m.NSID[strings.LastIndexByte(m.NSID, '.')+1:], status, name, "")
		}
	}
	for _, e := range errorlist.All {
		if !e.Every {
			continue
		}
		errors++
		wait := ""
		if e.RetryAfter != 0 {
			wait = "yes"
		}
		row("README", fmt.Sprint(e.Status), e.Name, wait+` \| `)
	}
	t.Logf("%d methods, %d errors", len(mlsapi.Methods()), errors)
}
