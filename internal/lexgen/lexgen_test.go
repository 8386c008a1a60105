package main

import (
	"bytes"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mlsd/lexicons"
)

func mustLoad(t *testing.T, dir fs.FS) schemas {
	t.Helper()
	set, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func mustRoot(t *testing.T) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// Regenerating must change nothing: no file behind, none too many, none too few.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	t.Parallel()
	for name, lang := range languages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			generatedIsCurrent(t, lang)
		})
	}
}

func generatedIsCurrent(t *testing.T, lang language) {
	want, err := lang.generate(mustLoad(t, lexicons.Files))
	if err != nil {
		t.Fatal(err)
	}
	root := os.DirFS(mustRoot(t))
	got := map[string][]byte{}
	names, err := lang.generated(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if got[name], err = fs.ReadFile(root, name); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("other files than generated; run go generate ./lexicons (-want +got):\n%s", diff)
	}
	for name := range want {
		if !bytes.Equal(want[name], got[name]) {
			t.Errorf("%s is behind the lexicons; run go generate ./lexicons", name)
		}
	}
}

// Every change of a lexicon passes through -land, which refuses breaking ones.
func TestLandedSnapshotIsCurrent(t *testing.T) {
	t.Parallel()
	landed, err := os.ReadFile(filepath.Join(mustRoot(t), landedPath))
	if err != nil {
		t.Fatal(err)
	}
	before, err := readSnapshot(landed)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range unaccepted(before, mustLoadAll(t)) {
		t.Errorf("breaks clients: %s", c)
	}
	now, err := snapshot(mustLoadAll(t))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(landed, now) {
		t.Error("the lexicons are not the landed ones; run go run ./internal/lexgen -land")
	}
}

// The snapshot's own history catches an edit of the snapshot by hand.
func TestNothingLandedIsBroken(t *testing.T) {
	t.Parallel()
	root := mustRoot(t)
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		return string(out), err
	}
	now := mustLoadAll(t)
	for _, path := range []string{landedPath, oldLanded} {
		revs, err := git("log", "--format=%H", "--", path)
		if err != nil {
			t.Skipf("no git history to compare with: %v", err)
		}
		for _, rev := range strings.Fields(revs) {
			data, err := git("show", rev+":"+path)
			if err != nil {
				continue // the commit removed the file
			}
			before, err := readSnapshot([]byte(data))
			if err != nil {
				t.Errorf("%.12s: %v", rev, err)
				continue
			}
			for _, c := range unaccepted(before, now) {
				t.Errorf("breaks clients of commit %.12s: %s", rev, c)
			}
		}
	}
}

func TestGoName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"convoId": "ConvoID", "didList": "DIDList", "dids": "DIDs", "embedUri": "EmbedURI",
		"senderDid": "SenderDID", "convoIds": "ConvoIDs", "in_flight": "InFlight", "keyPackageRef": "KeyPackageRef",
	} {
		if got := goName(in); got != want {
			t.Errorf("goName(%q) = %q, want %q", in, got, want)
		}
	}
}

// mustLoadAll returns all lexicons that land.
func mustLoadAll(t *testing.T) schemas {
	t.Helper()
	set, err := loadAll(lexicons.Files)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// What clients write for clients lands too, and outlives every release: a change that an older
// client cannot read, or that makes what it writes invalid, is refused.
func TestLandBetweenClients(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "landed.json")
	set := mustLoadAll(t)
	if err := landSnapshot(set, path, io.Discard); err != nil {
		t.Fatal(err)
	}
	landed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const device, content = "blue.catbird.mls.device", "blue.catbird.mls.content"
	for _, tc := range []struct{ id, old, new, want string }{
		{device, `"key": "any"`, `"key": "tid"`, "mls.device: key changed from tid to any"},
		{device, `"maxLength": 4096`, `"maxLength": 4095`, "signatureKey: maxLength changed"},
		{device, `"maxLength": 4096`, `"maxLength": 4097`, "signatureKey: maxLength changed"},
		{device, `"createdAt"`, `"madeAt"`, "madeAt: field removed"},
		{device, device, "blue.catbird.mls.phone", "mls.phone: lexicon removed"},
		{content, `"maxGraphemes": 20000`, `"maxGraphemes": 20001`, "text: maxGraphemes changed"},
		{content, `"maxGraphemes": 20000`, `"maxGraphemes": 19999`, "text: maxGraphemes changed"},
		{content, `"emoji"`, `"sign"`, "sign: field removed"},
	} {
		i := slices.IndexFunc(set, func(sf *schema) bool { return sf.ID == tc.id })
		changed := bytes.ReplaceAll(set[i].source, []byte(tc.old), []byte(tc.new))
		sf, err := parse(changed)
		if err != nil || bytes.Equal(changed, set[i].source) {
			t.Fatalf("%s to %s: %v", tc.old, tc.new, err)
		}
		before := slices.Clone(set)
		before[i] = sf
		if broken := strings.Join(breaking(before, set), "\n"); !strings.Contains(broken, tc.want) {
			t.Errorf("%s to %s: %q, want %q", tc.old, tc.new, broken, tc.want)
		}
	}
	for _, id := range []string{device, content} {
		if !bytes.Contains(landed, []byte(id)) {
			t.Errorf("%s did not land", id)
		}
	}
}

// -land records a compatible change and refuses a breaking one.
func TestLand(t *testing.T) {
	t.Parallel()
	set := mustLoadAll(t)
	path := filepath.Join(t.TempDir(), "landed.json")
	if err := landSnapshot(set, path, io.Discard); err != nil {
		t.Fatal(err)
	}
	landed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wider := bytes.Replace(landed, []byte(`"name": "NotMember"`), []byte(`"name": "NoMember"`), 1)
	if bytes.Equal(wider, landed) {
		t.Fatal("nothing to change")
	}
	if err := os.WriteFile(path, wider, 0o644); err != nil {
		t.Fatal(err)
	}
	err = landSnapshot(set, path, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "error NoMember removed") {
		t.Errorf("landing over a removed error: %v", err)
	}
}
