package operator

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/features/transparency"
)

// logKeyParam names a key that signs the heads of logs.
var logKeyParam = Param{Name: "id", Usage: "the key's id", Kind: LogKey}

func (c Call) logKey() int32 { return int32(c.number(logKeyParam.Name)) }

var logKeyList = Method{
	Noun: "log-key", Verb: "list", Usage: "the keys that sign heads of logs, and those that have signed some",
	run: func(ctx context.Context, s *Service, tx pgx.Tx, _ Call) (any, error) {
		keys, err := s.c.Heads.ListKeys(ctx, tx)
		return LogKeyList{keys}, err
	},
}

// LogKeyList is the result of log-key.list.
type LogKeyList struct {
	Keys []transparency.Key `json:"keys"`
}

var logKeyAdd = Method{
	Noun: "log-key", Verb: "add", Usage: "make a key that signs heads of logs beside the others, so that devices learn it",
	Write: true,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, _ Call) (any, error) {
		key, err := s.c.Heads.AddKey(ctx, tx)
		return LogKeyAdded{key, "All nodes sign with it within seconds."}, err
	},
}

// LogKeyAdded is the result of log-key.add.
type LogKeyAdded struct {
	transparency.Key
	Note string `json:"note"`
}

var logKeyRetire = Method{
	Noun: "log-key", Verb: "retire", Usage: "delete the seed of a key: it signs no more",
	Params: []Param{logKeyParam,
		{Name: "now", Usage: "also if devices that were away do not know another key yet", Optional: true, Kind: Flag}},
	Write: true, Final: true,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		done, err := s.c.Heads.RetireKey(ctx, tx, c.logKey(), c.flag("now"))
		out := LogKeyChanged{c.logKey(), done.Changed,
			"No node signs with it within seconds. Heads that it has signed can still be checked."}
		if done.Changed && done.Early {
			out.Note += " A device that has checked no head since " + done.Since.Format(time.RFC3339) +
				" says that the server's head is not signed with the key that it had."
		}
		return out, err
	},
}

// LogKeyChanged is the result of log-key.retire and log-key.withhold.
type LogKeyChanged struct {
	ID      int32  `json:"id"`
	Changed bool   `json:"changed"` // false if it was so before
	Note    string `json:"note"`
}

var logKeyWithhold = Method{
	Noun: "log-key", Verb: "withhold",
	Usage:  "give a key to no new device, because its seed has leaked; it goes on signing until it is retired",
	Params: []Param{logKeyParam}, Write: true, Final: true,
	run: func(ctx context.Context, s *Service, tx pgx.Tx, c Call) (any, error) {
		const note = "New devices are not given it. Devices that know it accept what it has signed until their app begins " +
			"anew."
		changed, err := s.c.Heads.WithholdKey(ctx, tx, c.logKey())
		return LogKeyChanged{c.logKey(), changed, note}, err
	},
}
