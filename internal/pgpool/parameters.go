package pgpool

import (
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// parameters are the encoded parameters of queries, one after another. They do what
// pgx.ExtendedQueryBuilder does, but reuse their memory. The parameters of a batch have hundreds of
// kilobytes, and a builder would grow from 128 bytes each time.
type parameters struct {
	values  [][]byte // nil means NULL
	formats []int16
	buffer  []byte // holds the values; never nil, so that an empty value is not NULL
}

// Sizes of the buffer, in bytes: the first size, and the largest size that is kept.
const firstParameters, maxParameters = 4 << 10, 1 << 20

var parametersPool = sync.Pool{New: func() any { return &parameters{buffer: make([]byte, 0, firstParameters)} }}

// release makes p usable for other queries. No part of p may be in use.
func (p *parameters) release() {
	if cap(p.buffer) > maxParameters {
		p.buffer = make([]byte, 0, firstParameters)
	}
	clear(p.values)
	p.values, p.formats, p.buffer = p.values[:0], p.formats[:0], p.buffer[:0]
	parametersPool.Put(p)
}

// add encodes the parameters of a query.
func (p *parameters) add(types *pgtype.Map, s *pgconn.StatementDescription, args []any) error {
	if len(args) != len(s.ParamOIDs) {
		return fmt.Errorf("%d parameters, want %d", len(args), len(s.ParamOIDs))
	}
	for i, arg := range args {
		if err := p.encode(types, s.ParamOIDs[i], arg); err != nil {
			return fmt.Errorf("parameter %d: %w", i+1, err)
		}
	}
	return nil
}

func (p *parameters) encode(types *pgtype.Map, oid uint32, arg any) error {
	format := types.FormatCodeForOID(oid)
	switch arg.(type) {
	case string, *string: // for a parameter of any type, such as an interval
		format = pgtype.TextFormatCode
	}
	start := len(p.buffer)
	encoded, err := types.Encode(oid, format, arg, p.buffer)
	if err != nil {
		return err
	}
	p.formats = append(p.formats, format)
	if encoded == nil {
		p.values = append(p.values, nil)
		return nil
	}
	p.buffer = encoded
	p.values = append(p.values, encoded[start:len(encoded):len(encoded)])
	return nil
}

// resultFormats are the formats of a query's results.
func resultFormats(types *pgtype.Map, s *pgconn.StatementDescription) []int16 {
	formats := make([]int16, len(s.Fields))
	for i, f := range s.Fields {
		formats[i] = types.FormatCodeForOID(f.DataTypeOID)
	}
	return formats
}
