package events_test

import (
	"testing"

	"mlsd/events"
)

// E3: only what the server writes is a cursor.
func TestParseCursor(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]events.Cursor{
		"0":                      events.From(0),
		"1042":                   events.After(1042),
		"9007199254740991":       events.After(1<<53 - 1),
		"0.0:7":                  {Generation: 0, Seq: 7},
		"1k.0:1042":              {Generation: 56, Seq: 1042},
		"1k.0:0":                 {Generation: 56, Seq: 0},
		"zzzzzzzzzz.0:900719925": {Generation: 3656158440062975, Seq: 900719925},
	} {
		if got, err := events.ParseCursor(text); got != want || err != nil {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", " 1", "-1", "+1", "01", "1.5", "1e3", "9007199254740992", "99999999999999999999", "0x10", "1_000", "x",
		"1k.0:", ".0:1", "1k.1:7", "1k.0:7,1:9", "1K.0:7", "01.0:7", "1k.0:07", "1k.0:-7", "1k.00:7", "1k:7", "1k.7",
		"1k.0:9007199254740992",
		"zzzzzzzzzzz.0:7", "1k.0:7\n",
	} {
		if got, err := events.ParseCursor(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	for _, text := range []string{"0", "1042", "1k.0:1042", "1k.0:1,1:2", "9007199254740992", "zzzzzzzzzz.0:1", "-1",
		"1k.0:\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := events.ParseCursor(text)
		if err != nil {
			return
		}
		if again := events.CursorText(c); again != text {
			t.Errorf("%q is %+v, which is written %q", text, c, again)
		}
	})
}
