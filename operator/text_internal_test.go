package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shown is a result with what questions have in theirs.
type shown struct {
	Caller string     `json:"caller"`
	Why    string     `json:"why" dids:"shortened"`
	Hidden int        `json:"hidden" text:"-"`
	Ended  *time.Time `json:"endedAt"`
	Rows   []shownRow `json:"rows"`
}

type shownRow struct {
	LastError string    `json:"lastError"`
	Seconds   float64   `json:"seconds" text:"mean time|short"`
	Age       float64   `json:"age"`
	Hour      time.Time `json:"at" text:"hour (UTC)|hour"`
	Names     []string  `json:"names"`
}

// nothing is a result without rows.
type nothing struct {
	Rows []shownRow `json:"rows"`
}

func TestWriteText(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		result any
		want   string
	}{
		"fields and a table": {
			shown{Caller: "\x1b[31mred", Why: "because", Ended: &noon,
				Rows: []shownRow{{LastError: "x", Seconds: 1.25, Age: 300, Hour: noon, Names: []string{"a", "b"}}, {}}},
			"caller      ·[31mred\nwhy         because\nended at    2026-11-23 12:00:00.000\n" +
				"last error  mean time  age   hour (UTC)        names\n" +
				"x           1.25s      5m0s  2026-11-23 12:00  a b\n" +
				"-           0s         -     0001-01-01 00:00  -\n",
		},
		"what is missing": {shown{Caller: "x"}, "caller    x\nwhy       -\nended at  -\n"},
		"no rows":         {nothing{}, "nothing: look there\n"},
	} {
		var got strings.Builder
		if err := WriteText(&got, c.result, "nothing: look there"); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.want, got.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// DIDs are shortened or removed wherever they are in a result, but for the one that was asked for.
func TestHideDIDs(t *testing.T) {
	t.Parallel()
	got := hideDIDs(&shown{
		Caller: "did:plc:alicealice", Why: "a commit of did:plc:bobbobbob came first",
		Rows: []shownRow{{LastError: "no route to did:plc:bobbobbob",
			Names: []string{"did:plc:bobbobbob", "did:plc:carolcarol", "did:web:a", "mlsd"}}},
	}, "did:plc:carolcarol")
	want := &shown{
		Caller: "did:plc:alic…", Why: "a commit of did:plc:bobb… came first",
		Rows: []shownRow{{LastError: "no route to did:…",
			Names: []string{"did:plc:bobb…", "did:plc:carolcarol", "did:web:a", "mlsd"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
