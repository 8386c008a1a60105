package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"mlsd/operator"
)

type disputesReport struct {
	Disputes []operator.Dispute `json:"disputes"`
}

func reportDisputes(ctx context.Context, i inspection) (report, error) {
	convo := uuid.Nil
	if i.entityID != "" {
		var err error
		if convo, err = uuid.Parse(i.entityID); err != nil {
			return nil, fmt.Errorf("inspect disputes: %q is no id of a convo", i.entityID)
		}
	}
	found, err := operator.Disputes(ctx, i.tx, convo, i.rows)
	for n := range found {
		d := &found[n]
		if d.Committer != "" {
			d.Committer = i.did(d.Committer)
		}
		for a := range d.Accounts {
			d.Accounts[a] = i.did(d.Accounts[a])
		}
	}
	return disputesReport{found}, err
}

func (r disputesReport) print(w io.Writer) {
	table(w, "convo | epoch | state | committer | voices | reports | began | accounts | reasons", r.Disputes, func(d operator.Dispute) []any {
		return []any{d.Convo, d.Epoch, d.State, d.Committer, d.Voices, d.Reports, d.At.UTC().Format("2006-01-02 15:04:05"),
			strings.Join(d.Accounts, " "), strings.Join(d.Reasons, " ")}
	})
}
