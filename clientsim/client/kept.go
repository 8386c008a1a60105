package client

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// Bounds of the acknowledged drafts that a phone keeps. docs/RECOVERY.md says why.
const (
	maxKept     = 200
	longestKept = 7 * 24 * time.Hour
)

// keptDraft is an acknowledged draft and its file.
type keptDraft struct {
	Draft
	name string
}

// keep adds an acknowledged draft to the files to be written, and removes those that are too many or
// too old. The names are in the order of the acknowledgements.
func (p *Phone) keep(d *Draft, changes map[string][]byte) (err error) {
	defer Catch(&err)
	data := Must(json.Marshal(d))
	now := time.Now()
	names := p.Disk.List(keptPrefix)
	for i, name := range names {
		at, err := strconv.ParseInt(strings.TrimPrefix(name, keptPrefix), 10, 64)
		Check(errs.Wrap(err, "%s: %s", p.Name, name))
		if len(names)-i >= maxKept || now.Sub(time.Unix(0, at)) > longestKept {
			changes[name] = nil
		}
	}
	changes[fmt.Sprintf("%s%020d", keptPrefix, now.UnixNano())] = data
	return nil
}

// keptDrafts returns the acknowledged drafts of a convo, in the order of their acknowledgements. The
// empty convo has the publications and creates.
func (p *Phone) keptDrafts(convo string) (kept []keptDraft, err error) {
	for _, name := range p.Disk.List(keptPrefix) {
		data, _ := p.Disk.Read(name)
		k := keptDraft{name: name}
		if err := json.Unmarshal(data, &k.Draft); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", p.Name, name, err)
		}
		if k.Convo() == convo {
			kept = append(kept, k)
		}
	}
	return kept, nil
}

// dropKept adds to changes that a convo's kept drafts are removed.
func (p *Phone) dropKept(convo string, changes map[string][]byte) error {
	kept, err := p.keptDrafts(convo)
	for _, k := range kept {
		changes[k.name] = nil
	}
	return err
}
