package pgpool_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// An Array arrives as it was sent, with NULLs and when it is empty.
func TestArrays(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	id, text, at := uuid.Must(uuid.NewV7()), `a'"\,{} é`, time.Unix(1_800_000_000, 5000).UTC()
	var (
		ids      []uuid.UUID
		texts    []string
		optional []*string
		bodies   [][]byte
		ints     []int64
		shorts   []int16
		times    []time.Time
		empty    []string
	)
	err := db.QueryRow(t.Context(),
		`SELECT $1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::smallint[], $7::timestamptz[], $8::text[]`,
		pgpool.Array[pgpool.UUID]{pgpool.UUID(id)}, pgpool.Array[pgpool.Text]{pgpool.Text(text), ""},
		pgpool.Array[pgpool.OptionalText]{pgpool.Optional(nil), pgpool.Optional(&text)},
		pgpool.Array[pgpool.Bytes]{{0, 255}, nil, {}},
		pgpool.Array[pgpool.Int]{-1, 1 << 52}, pgpool.Array[pgpool.Int]{3}, pgpool.Array[pgpool.Time]{pgpool.Time(at)},
		pgpool.Array[pgpool.Text]{},
	).Scan(&ids, &texts, &optional, &bodies, &ints, &shorts, &times, &empty)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(ids) != 1 || ids[0] != id:
		t.Errorf("ids %v", ids)
	case len(texts) != 2 || texts[0] != text || texts[1] != "":
		t.Errorf("texts %q", texts)
	case len(optional) != 2 || optional[0] != nil || *optional[1] != text:
		t.Errorf("optional texts %v", optional)
	case len(bodies) != 3 || string(bodies[0]) != "\x00\xff" || bodies[1] != nil || bodies[2] == nil ||
		len(bodies[2]) != 0:
		t.Errorf("bodies %v", bodies)
	case len(ints) != 2 || ints[0] != -1 || ints[1] != 1<<52 || len(shorts) != 1 || shorts[0] != 3:
		t.Errorf("integers %v, %v", ints, shorts)
	case len(times) != 1 || !times[0].Equal(at):
		t.Errorf("times %v", times)
	case empty == nil || len(empty) != 0:
		t.Errorf("empty %v", empty)
	}
	if err := db.QueryRow(t.Context(), `SELECT $1::smallint[]`,
		pgpool.Array[pgpool.Int]{1 << 20}).Scan(&shorts); err == nil {
		t.Error("an integer that does not fit was sent")
	}
}

// Encoding an element allocates nothing.
func TestArraysAllocateNothing(t *testing.T) {
	m, buf := pgtype.NewMap(), make([]byte, 0, 1<<20)
	allocs := func(n int) float64 {
		ids := make(pgpool.Array[pgpool.UUID], n)
		texts := make(pgpool.Array[pgpool.Text], n)
		bodies := make(pgpool.Array[pgpool.Bytes], n)
		for i := range n {
			ids[i], texts[i], bodies[i] = pgpool.UUID(uuid.New()), "text", pgpool.Bytes("body")
		}
		return testing.AllocsPerRun(10, func() {
			for oid, array := range map[uint32]any{pgtype.UUIDArrayOID: ids, pgtype.TextArrayOID: texts,
				pgtype.ByteaArrayOID: bodies} {
				if _, err := m.Encode(oid, pgtype.BinaryFormatCode, array, buf); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if one, many := allocs(1), allocs(1000); many > one+10 {
		t.Errorf("%.0f allocations for 1 element each, %.0f for 1,000", one, many)
	}
}
