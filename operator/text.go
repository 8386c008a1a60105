package operator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// WriteText writes a result for people: a line for each field, and a table for each list that is
// not empty. A field's name is its JSON name, as words. The tag text:"NAME|FORMAT" sets another
// name and the format of the value; text:"-" leaves the field out. If the result has only empty
// lists, WriteText writes the text nothing. If the result is JSON, WriteText writes each of its
// fields.
func WriteText(w io.Writer, result any, nothing string) error {
	table := NewTable(w)
	body, isJSON := result.(json.RawMessage)
	switch own, isOwn := result.(interface{ text(io.Writer) }); {
	case isJSON:
		if err := Fields(body, func(name, value string) { Line(table, name, value) }); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
	case foundNothing(result):
		Line(table, nothing)
	case isOwn:
		own.text(table)
	default:
		writeFields(table, result)
	}
	return table.Flush()
}

// writeFields writes a struct.
func writeFields(w io.Writer, result any) {
	v := reflect.ValueOf(result)
	for _, c := range columns(v.Type()) {
		field := v.Field(c.field)
		switch {
		case field.Kind() != reflect.Slice:
			Line(w, c.name, c.written(field))
		case field.Len() > 0:
			writeTable(w, field)
		}
	}
}

// writeTable writes the structs of a list. A struct with the method cells decides what is in its
// row.
func writeTable(w io.Writer, rows reflect.Value) {
	all := columns(rows.Type().Elem())
	var names []any
	for _, c := range all {
		names = append(names, c.name)
	}
	Line(w, names...)
	for i := range rows.Len() {
		row := rows.Index(i)
		if own, ok := row.Interface().(interface{ cells() []any }); ok {
			Line(w, own.cells()...)
			continue
		}
		var cells []any
		for _, c := range all {
			cells = append(cells, c.written(row.Field(c.field)))
		}
		Line(w, cells...)
	}
}

// column is a field of a struct as text.
type column struct {
	field        int
	name, format string
}

func columns(t reflect.Type) (all []column) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, format, _ := strings.Cut(f.Tag.Get("text"), "|")
		if name == "-" {
			continue
		}
		plain, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		all = append(all, column{i, cmp.Or(name, words(plain)), format})
	}
	return all
}

// words turns a name such as lastError into words.
func words(name string) string {
	var out strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			out.WriteByte(' ')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// Formats of columns. Without a format, a number with a point is a span of seconds, such as 3d7h or
// 5m0s.
const (
	asShort = "short" // seconds, to the millisecond, such as 1.25s or 3ms
	asHour  = "hour"  // the hour of a time
)

// written formats a value. A missing or empty value is a dash.
func (c column) written(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "-"
		}
		v = v.Elem()
	}
	switch value := v.Interface().(type) {
	case time.Time:
		if c.format == asHour {
			return value.UTC().Format("2006-01-02 15:00")
		}
		return clock(value)
	case float64:
		switch {
		case c.format == asShort:
			return milliseconds(value)
		case value == 0:
			return "-"
		}
		return longSpan(value)
	case []string:
		return cmp.Or(strings.Join(value, " "), "-")
	}
	return cmp.Or(fmt.Sprint(v.Interface()), "-")
}

// clock formats a time, to the millisecond.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") }

// milliseconds formats a time span, to the millisecond.
func milliseconds(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}

// longSpan formats a time span, to the second or to the hour.
func longSpan(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second)).Round(time.Second)
	if d >= 48*time.Hour {
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
	return d.String()
}

// NewTable returns a writer that aligns the cells of Line.
func NewTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

// Line writes cells to a table. It replaces everything that a terminal would obey. The table's
// Flush returns the error.
func Line(w io.Writer, cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = strings.Map(printable, fmt.Sprint(c))
	}
	_, _ = fmt.Fprintln(w, strings.Join(texts, "\t"))
}

// printable replaces control characters, because a client's text must not control the operator's
// terminal.
func printable(r rune) rune {
	if r < ' ' || r >= 0x7f && r < 0xa0 {
		return '·'
	}
	return r
}

// Fields calls yield with the fields of a JSON object, in their order. The name of a nested field
// begins with the name of the outer field. The elements of a list are numbered.
func Fields(object []byte, yield func(name, value string)) error {
	in := json.NewDecoder(bytes.NewReader(object))
	in.UseNumber()
	return fields(in, "", yield)
}

// fields reads the next value, whose fields get names below name.
func fields(in *json.Decoder, name string, yield func(name, value string)) error {
	token, err := in.Token()
	if err != nil {
		return err
	}
	delim, nested := token.(json.Delim)
	if !nested {
		yield(name, fmt.Sprint(token))
		return nil
	}
	for i := 1; in.More(); i++ {
		inner := fmt.Sprintf("%s %d", name, i)
		if delim == '{' {
			key, err := in.Token()
			if err != nil {
				return err
			}
			inner = strings.TrimSpace(fmt.Sprintf("%s %v", name, key))
		}
		if err := fields(in, inner, yield); err != nil {
			return err
		}
	}
	_, err = in.Token() // the end of the object or list
	return err
}

// elsewhere says, by the verb of a question that has found nothing, where else to look.
var elsewhere = map[string]string{
	"request": "a known caller's request leaves a row if it is refused, fails or is slow, and a sample of the others " +
		"does, for MLSD_REQUEST_RETENTION; the log has a line of every request, also of an unknown caller's",
	"reservations": "inspect records counts the work that has ended, and inspect audit \"METHOD KEY\" has its steps",
	"records": "inspect lifetimes says how long records last, and the record of a message is its entry in the log; " +
		"without --since all are counted",
	"conflicts":   "a longer --since looks further back; inspect request --refused has single requests",
	"welcomes":    "inspect audit ID has what became of one Welcome",
	"keypackages": "inspect audit REF has what became of one KeyPackage",
	"lifetimes":   "inspect records counts what there is",
	"quotas":      "uses are counted from 00:00 UTC, and by the full DID; inspect records --by-caller has single methods",
	"disputes":    "only forks and disputes are here; mlsd admin convo show CONVO says whether there is such a convo",
	"audit": "an id is that of a convo or Welcome, a KeyPackageRef in hexadecimal, or \"METHOD KEY\"; inspect " +
		"request has " +
		"requests, and inspect actions what operators did",
	"actions": "only what was done by mlsd admin, the console or its listener is here; inspect audit ID has what the " +
		"server did",
	"push": "jobs that are sent are deleted; mlsd_push_attempts_total counts them, and mlsd admin account show " +
		"DID lists " +
		"an account's devices",
	"services": "budgets are there from a service's first invitation to 90 days after its last one; inspect request " +
		"--refused has what was refused",
}

// Nothing returns the text for a question that has found nothing: what was looked for, and where
// else to look.
func (m Method) Nothing(c Call) string {
	var asked []string // as on the command line
	for _, p := range m.Params {
		switch text := c.Params[p.Name]; {
		case text == "":
		case p.Flag():
			asked = append(asked, "--"+p.Name)
		case p.Argument():
			asked = append(asked, text)
		default:
			asked = append(asked, "--"+p.Name+" "+text)
		}
	}
	if len(asked) == 0 {
		return "nothing found: " + elsewhere[m.Verb]
	}
	return "nothing found for " + strings.Join(asked, " ") + ": " + elsewhere[m.Verb]
}

// foundNothing reports whether a result consists of lists, and all of them are empty.
func foundNothing(result any) bool {
	v := reflect.ValueOf(result)
	for _, c := range columns(v.Type()) {
		if f := v.Field(c.field); f.Kind() != reflect.Slice || f.Len() > 0 {
			return false
		}
	}
	return true
}
