package pgpool

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// Array is an array parameter. The driver encodes a slice of ordinary Go values by allocating one
// or more values for each element. It encodes the elements of an Array in place.
type Array[E any] []E

// Elements of an Array.
type (
	UUID         uuid.UUID
	Text         string
	OptionalText struct{ *string } // nil is NULL
	Bytes        []byte            // nil is NULL
	Int          int64             // for any integer type that the value fits
	Time         time.Time
)

// Optional returns the element for an optional text.
func Optional(s *string) OptionalText { return OptionalText{s} }

// Dimensions implements pgtype.ArrayGetter.
func (a Array[E]) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(a)), LowerBound: 1}}
}

// Index implements pgtype.ArrayGetter.
func (a Array[E]) Index(i int) any { return &a[i] }

// IndexType implements pgtype.ArrayGetter.
func (a Array[E]) IndexType() any { return new(E) }

// UUIDValue implements pgtype.UUIDValuer.
func (u *UUID) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: *u, Valid: true}, nil }

// TextValue implements pgtype.TextValuer.
func (t *Text) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: string(*t), Valid: true}, nil
}

// TextValue implements pgtype.TextValuer.
func (t *OptionalText) TextValue() (pgtype.Text, error) {
	if t.string == nil {
		return pgtype.Text{}, nil
	}
	return pgtype.Text{String: *t.string, Valid: true}, nil
}

// BytesValue implements pgtype.BytesValuer.
func (b *Bytes) BytesValue() ([]byte, error) { return *b, nil }

// Int64Value implements pgtype.Int64Valuer.
func (i *Int) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*i), Valid: true}, nil
}

// TimestamptzValue implements pgtype.TimestamptzValuer.
func (t *Time) TimestamptzValue() (pgtype.Timestamptz, error) {
	return pgtype.Timestamptz{Time: time.Time(*t), Valid: true}, nil
}
