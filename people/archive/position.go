package archive

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// ErrPosition says that a text is not one of Position.String.
var ErrPosition = errors.New("cursor is not one that this method gave: begin again without one")

// maxPosition is the longest text of a position, in bytes.
const maxPosition = 4096

// Position is a place in an archive. The zero Position is the beginning. It says nothing of whose
// archive it is: with another account's position an account reads its own rows from there on.
type Position struct {
	part int   // of parts
	key  []any // of the last row; nil: before the first row of the part
}

// String returns the position for ParsePosition. It is opaque to clients.
func (p Position) String() string {
	texts := []string{""}
	if p.part < len(parts) {
		texts[0] = parts[p.part].name
		for i, value := range p.key {
			texts = append(texts, parts[p.part].keys[i].format(value))
		}
	}
	raw, err := json.Marshal(texts)
	if err != nil {
		panic(err) // texts can always be encoded
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// ParsePosition parses what String has returned, of this version or another one. Error: ErrPosition.
func ParsePosition(text string) (p Position, err error) {
	if len(text) > maxPosition {
		return p, ErrPosition
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return p, ErrPosition
	}
	var texts []string
	if err := json.Unmarshal(raw, &texts); err != nil || len(texts) == 0 {
		return p, ErrPosition
	}
	p.part = slices.IndexFunc(parts, func(known part) bool { return known.name == texts[0] })
	if p.part < 0 {
		return Position{}, ErrPosition
	}
	keys := parts[p.part].keys
	if len(texts) == 1 {
		return p, nil
	}
	if len(texts) != 1+len(keys) {
		return Position{}, ErrPosition
	}
	for i, k := range keys {
		value, err := k.parse(texts[1+i])
		if err != nil {
			return Position{}, ErrPosition
		}
		p.key = append(p.key, value)
	}
	return p, nil
}

// column is a column of a part's key. Its name is that of the parameter of the statement.
type column struct {
	name string
	kind
}

// kind is the type of a column of a key.
type kind int

const (
	textKey kind = iota
	bytesKey
	uuidKey
	smallKey // integer
	largeKey // bigint
	timeKey
	dateKey
)

// least returns a value before all others.
func (k kind) least() any {
	switch k {
	case textKey:
		return ""
	case bytesKey:
		return []byte{}
	case uuidKey:
		return [16]byte{}
	case smallKey:
		return int32(math.MinInt32)
	case largeKey:
		return int64(math.MinInt64)
	}
	return time.Time{}
}

const dateFormat = "2006-01-02"

// format encodes a value that pgx has read.
func (k kind) format(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case []byte:
		return hex.EncodeToString(v)
	case [16]byte:
		return uuid.UUID(v).String()
	case time.Time:
		if k == dateKey {
			return v.Format(dateFormat)
		}
		return v.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprint(value) // a number
}

// parse is the inverse of format.
func (k kind) parse(text string) (any, error) {
	switch k {
	case textKey:
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return nil, ErrPosition
		}
		return text, nil
	case bytesKey:
		return hex.DecodeString(text)
	case uuidKey:
		id, err := uuid.Parse(text)
		return [16]byte(id), err
	case smallKey:
		n, err := strconv.ParseInt(text, 10, 32)
		return int32(n), err
	case largeKey:
		return strconv.ParseInt(text, 10, 64)
	case timeKey:
		return inRange(time.Parse(time.RFC3339Nano, text))
	case dateKey:
		return inRange(time.Parse(dateFormat, text))
	}
	return nil, ErrPosition
}

// inRange refuses times that PostgreSQL does not know.
func inRange(t time.Time, err error) (any, error) {
	if err == nil && (t.UTC().Year() < 1 || t.UTC().Year() > 9999) {
		err = ErrPosition
	}
	return t.UTC(), err
}
