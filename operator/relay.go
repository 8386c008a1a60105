package operator

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/features/relay"
)

// relaySeek is for what a relay said while nobody could read it, as long as the relay still has it.
var relaySeek = Method{
	Noun: "relay", Verb: "seek", Usage: "read the events of a relay from another place",
	Params: []Param{
		{Name: "relay", Usage: "the relay's address, as in MLSD_RELAY_URL"},
		{Name: "cursor", Usage: "the relay's number of the last event that is not read again; 0: read new events only",
			Kind: Number},
	},
	Write: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		source, err := relay.ParseSource(c.Params["relay"])
		if err != nil {
			return nil, BadRequest("relay " + err.Error())
		}
		out := Sought{Relay: source.String(), Cursor: c.number("cursor")}
		out.Was, err = relay.Seek(ctx, tx, source, out.Cursor)
		return out, err
	},
}

// Sought is the result of relay.seek.
type Sought struct {
	Relay  string `json:"relay"`
	Was    int64  `json:"was"`
	Cursor int64  `json:"cursor"`
}
