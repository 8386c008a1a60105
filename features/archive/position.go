package archive

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// ErrPosition says that a text was not made by Position.String.
var ErrPosition = errors.New("cursor is not one that this method gave: begin again without one")

// maxPosition is the longest text of a position, in bytes.
const maxPosition = 4096

// Position is a place in an archive. The zero Position is the beginning. It does not say whose
// archive it is: an account that uses another account's position reads its own rows from that place
// on.
type Position struct {
	part int   // index in parts
	key  []any // key of the last row; nil before the first row of the part
}

// String returns the position as a text for ParsePosition. The text is opaque to clients.
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
		panic(err) // these values can always be encoded
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// ParsePosition parses a result of String, from this version or another one. Error: ErrPosition.
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

// column is a column of a part's key. Its name is also the name of the statement's parameter.
type column struct {
	name string
	kind
}

// kind is the OID of the type of a key's column.
type kind uint32

const (
	textKey  kind = pgtype.TextOID
	bytesKey kind = pgtype.ByteaOID
	uuidKey  kind = pgtype.UUIDOID
	smallKey kind = pgtype.Int4OID
	largeKey kind = pgtype.Int8OID
	timeKey  kind = pgtype.TimestamptzOID
	dateKey  kind = pgtype.DateOID
)

// least maps each kind to a value before all others.
var least = map[kind]any{
	textKey: "", bytesKey: []byte{}, uuidKey: [16]byte{}, smallKey: int32(math.MinInt32), largeKey: int64(math.MinInt64),
	timeKey: time.Time{}, dateKey: time.Time{},
}

// format returns the text, in PostgreSQL's form, of a value that pgx has read.
func (k kind) format(value any) string {
	text, err := pgtype.NewMap().Encode(uint32(k), pgtype.TextFormatCode, value, nil)
	if err != nil {
		panic(err) // the value is of the kind
	}
	return string(text)
}

// parse is the inverse of format.
func (k kind) parse(text string) (any, error) {
	types := pgtype.NewMap()
	t, ok := types.TypeForOID(uint32(k))
	if !ok || strings.ContainsRune(text, 0) {
		return nil, ErrPosition
	}
	value, err := t.Codec.DecodeValue(types, uint32(k), pgtype.TextFormatCode, []byte(text))
	switch v := value.(type) {
	case time.Time:
		if y := v.UTC().Year(); y < 1 || y > 9999 { // PostgreSQL does not accept all years
			return nil, ErrPosition
		}
		return v.UTC().Truncate(time.Microsecond), err
	case pgtype.InfinityModifier:
		return nil, ErrPosition
	}
	return value, err
}
