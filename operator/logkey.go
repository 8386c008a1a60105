package operator

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/transparency"
)

// logKeyParam is the parameter that names a key that signs heads of logs.
var logKeyParam = Param{Name: "id", Usage: "the key's id"}

var (
	logKeyList = Method{
		Noun: "log-key", Verb: "list", Usage: "the keys that sign heads of logs, and those that have signed some",
		do: listLogKeys,
	}
	logKeyAdd = Method{
		Noun: "log-key", Verb: "add", Usage: "make a key that signs heads of logs beside the others, so that devices learn it",
		Write: true, do: addLogKey,
	}
	logKeyRetire = Method{
		Noun: "log-key", Verb: "retire", Usage: "delete the seed of a key: it signs no more",
		Params: []Param{logKeyParam, {Name: "now", Usage: "also if devices that were away do not know another key yet", Optional: true, Flag: true}},
		Write:  true, Final: true, do: retireLogKey,
	}
	logKeyWithhold = Method{
		Noun: "log-key", Verb: "withhold", Usage: "give a key to no new device, because its seed has leaked; it goes on signing until it is retired",
		Params: []Param{logKeyParam}, Write: true, Final: true, do: withholdLogKey,
	}
)

// LogKeyList is the result of log-key.list.
type LogKeyList struct {
	Keys []transparency.Key `json:"keys"`
}

func listLogKeys(ctx context.Context, s *Service, _ Call) (any, error) {
	keys, err := s.heads.ListKeys(ctx, s.db)
	return LogKeyList{keys}, err
}

// LogKeyAdded is the result of log-key.add.
type LogKeyAdded struct {
	transparency.Key
	Note string `json:"note"`
}

func addLogKey(ctx context.Context, s *Service, c Call) (any, error) {
	out := LogKeyAdded{Note: "All nodes sign with it within seconds."}
	err := s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Key, err = s.heads.AddKey(ctx, tx)
		return err
	})
	return out, logKeyError(err)
}

// LogKeyRetired is the result of log-key.retire.
type LogKeyRetired struct {
	ID      int32  `json:"id"`
	Changed bool   `json:"changed"` // false: it was retired before
	Note    string `json:"note"`
}

func retireLogKey(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseLogKey(c)
	if err != nil {
		return nil, err
	}
	var done transparency.Retired
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		done, err = s.heads.RetireKey(ctx, tx, id, c.Params["now"] == FlagSet)
		return err
	})
	out := LogKeyRetired{ID: id, Changed: done.Changed, Note: "No node signs with it within seconds. Heads that it has signed can still be checked."}
	if done.Changed && done.Early {
		out.Note += " A device that has checked no head since " + done.Since.Format(time.RFC3339) +
			" says that the server's head is not signed with the key that it had."
	}
	return out, logKeyError(err)
}

// LogKeyWithheld is the result of log-key.withhold.
type LogKeyWithheld struct {
	ID      int32  `json:"id"`
	Changed bool   `json:"changed"` // false: it was withheld before
	Note    string `json:"note"`
}

func withholdLogKey(ctx context.Context, s *Service, c Call) (any, error) {
	id, err := parseLogKey(c)
	if err != nil {
		return nil, err
	}
	out := LogKeyWithheld{ID: id, Note: "New devices are not given it. Devices that know it accept what it has signed until their app begins anew."}
	err = s.writing(ctx, c, func(tx pgx.Tx) (err error) {
		out.Changed, err = s.heads.WithholdKey(ctx, tx, id)
		return err
	})
	return out, logKeyError(err)
}

func parseLogKey(c Call) (int32, error) {
	id, err := strconv.ParseInt(c.Params[logKeyParam.Name], 10, 32)
	if err != nil {
		return 0, badRequest("id must be a number of log-key list")
	}
	return int32(id), nil
}

// logKeyError returns an error of package transparency as an answer.
func logKeyError(err error) error {
	var refused *transparency.KeyError
	switch {
	case errors.Is(err, transparency.ErrNoKey):
		return &Error{http.StatusNotFound, "LogKeyNotFound", "there is no key with this id"}
	case errors.As(err, &refused):
		return &Error{http.StatusConflict, "LogKeyRefused", refused.Why}
	}
	return err
}
