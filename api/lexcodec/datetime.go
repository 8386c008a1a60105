package lexcodec

import (
	"errors"
	"strings"
	"time"
)

var errDatetime = errors.New("must be an RFC 3339 datetime, such as 2026-01-02T15:04:05Z")

// datetimeLayout always writes three digits, so that equal times are equal text.
const datetimeLayout = "2006-01-02T15:04:05.000Z"

// Datetime is a lexicon datetime: a moment in UTC, to the millisecond.
// [ParseDatetime] and [NewDatetime] cut off finer digits, so a value survives a
// round trip.
type Datetime struct{ time.Time }

// NewDatetime converts t, cutting it to the millisecond.
func NewDatetime(t time.Time) Datetime {
	return Datetime{t.UTC().Truncate(time.Millisecond)}
}

// ParseDatetime reads RFC 3339 with any offset and any number of decimals.
func ParseDatetime(text string) (Datetime, error) {
	var t time.Time
	if err := t.UnmarshalText([]byte(text)); err != nil || strings.IndexByte(text, ',') >= 0 {
		return Datetime{}, errDatetime // package time accepts a decimal comma, RFC 3339 does not
	}
	d := NewDatetime(t)
	if y := d.Year(); y < 0 || y > 9999 { // an offset can move the year beyond four digits
		return Datetime{}, errDatetime
	}
	return d, nil
}

// String returns RFC 3339 in UTC with exactly three decimals and a Z.
func (d Datetime) String() string { return d.UTC().Format(datetimeLayout) }

// AppendJSON appends the JSON form to dst.
func (d Datetime) AppendJSON(dst []byte) []byte {
	dst = append(dst, '"')
	dst = appendDatetime(dst, d.UTC())
	return append(dst, '"')
}

// AppendText implements encoding.TextAppender.
func (d Datetime) AppendText(dst []byte) ([]byte, error) {
	return appendDatetime(dst, d.UTC()), nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Datetime) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Datetime) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDatetime(string(text))
	return err
}

// MarshalJSON implements the interface of both JSON packages.
func (d Datetime) MarshalJSON() ([]byte, error) { return d.AppendJSON(nil), nil }

// UnmarshalJSON implements the interface of both JSON packages.
func (d *Datetime) UnmarshalJSON(data []byte) error {
	return decodeWith(data, func(dec *Decoder) { *d = dec.Datetime() })
}
