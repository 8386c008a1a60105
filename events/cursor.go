package events

import (
	"errors"
	"regexp"
	"strconv"
)

// Errors about cursors. ErrFutureCursor keeps a subscription from beginning.
var (
	ErrInvalidCursor = errors.New("this is no cursor of the stream")
	ErrFutureCursor  = errors.New("the cursor is ahead of the stream; connect without one, and read the convos " +
		"with getConvos")
)

// byNumber is the Generation of a Cursor that has the form of a number.
const byNumber = -1

// maxNumber is the largest number of an event. It has 53 bits, because clients store numbers as
// JSON.
const maxNumber = 1<<53 - 1

// Cursor is the place of the last event that a client has. The stream continues after that event.
//
// Clients write a cursor in one of two forms. Its number is an integer, and each generation of the
// stream has its own range of integers. Its position names the generation: 1k.0:1042 is event 1042
// of generation 1k (in base 36). The 0 is the stream, because there is only one.
type Cursor struct {
	Generation int64 // id of the generation, or byNumber
	Seq        int64 // the stream_seq; the number, if Generation is byNumber
}

// After returns the cursor of a client that has the event with this number.
func After(number int64) Cursor { return Cursor{byNumber, number} }

// From returns the cursor of a client whose next event has this number. 0 asks for all events that
// are kept.
func From(number int64) Cursor { return After(number - 1) }

// oldest is the cursor of a client that asks for all events that are kept.
var oldest = From(0)

var (
	numberForm   = regexp.MustCompile(`^(0|[1-9][0-9]{0,15})$`)
	positionForm = regexp.MustCompile(`^(0|[1-9a-z][0-9a-z]{0,9})\.0:(0|[1-9][0-9]{0,15})$`)
)

// ParseCursor reads a cursor in either form. The number 0 asks for all events that are kept. If
// text has another form, ParseCursor returns ErrInvalidCursor.
func ParseCursor(text string) (Cursor, error) {
	c := Cursor{Generation: byNumber}
	number := text
	if parts := positionForm.FindStringSubmatch(text); parts != nil {
		id, err := strconv.ParseInt(parts[1], 36, 64)
		if err != nil {
			return Cursor{}, ErrInvalidCursor
		}
		c.Generation, number = id, parts[2]
	} else if !numberForm.MatchString(text) {
		return Cursor{}, ErrInvalidCursor
	}
	var err error
	if c.Seq, err = strconv.ParseInt(number, 10, 64); err != nil || c.Seq > maxNumber {
		return Cursor{}, ErrInvalidCursor
	}
	if c == After(0) {
		return oldest, nil
	}
	return c, nil
}
