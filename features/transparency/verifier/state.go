package verifier

import (
	"encoding/json"
	"errors"
	"time"
)

// state is what is stored between two starts of an app.
type state struct {
	Service    string   `json:"service"`
	ConvoID    string   `json:"convoId"`
	Keys       []string `json:"keys"`
	Started    bool     `json:"started"` // Edge is the tree up to the last entry that was shown
	Generation int64    `json:"generation"`
	// Since is the time of the first head of the generation, if there may have been a generation before.
	Since     time.Time       `json:"since,omitzero"`
	Edge      Edge            `json:"edge"`
	Leaves    []Hash          `json:"leaves"` // of the last entries
	Roots     []Hash          `json:"roots"`  // of the trees that end with these entries
	Head      string          `json:"head"`   // the newest checked head
	HeadSize  int64           `json:"headSize"`
	Waiting   []waiting       `json:"waiting,omitempty"`
	Tags      map[string]Hash `json:"tags,omitempty"`
	Sent      map[int64]Seen  `json:"sent,omitempty"`
	Early     map[int64]bool  `json:"early,omitempty"`    // of Sent: acknowledged before the generation's first head
	Lost      bool            `json:"lost,omitempty"`     // the app knows that early entries are lost
	Acked     int64           `json:"acked,omitempty"`    // the largest seq that was acknowledged
	Unheaded  int             `json:"unheaded,omitempty"` // entries since the last head
	Silent    time.Time       `json:"silent,omitzero"`    // since when heads are refused
	Doubted   bool            `json:"doubted,omitempty"`  // entries are being read again
	Backs     []WentBack      `json:"backs,omitempty"`
	OtherKeys []OtherKey      `json:"otherKeys,omitempty"`
	Lie       *Lie            `json:"lie,omitempty"`

	OtherSenders []OtherSender `json:"otherSenders,omitempty"`
}

// waiting is a head with more entries than were shown.
type waiting struct {
	Text string `json:"text"`
	Size int64  `json:"size"`
	Root Hash   `json:"root"`
	From string `json:"from,omitempty"` // the member who sent it; "" means the server
}

// Restore returns the verifier that Save has stored. now can be nil.
func Restore(data []byte, source Source, now func() time.Time) (*Verifier, error) {
	v := &Verifier{source: source, now: now}
	if err := json.Unmarshal(data, &v.s); err != nil {
		return nil, err
	}
	if !v.s.Edge.Valid() || len(v.s.Leaves) != len(v.s.Roots) {
		return nil, errors.New("the verifier's state is damaged")
	}
	v.complete()
	return v, nil
}

func (v *Verifier) complete() {
	if v.now == nil {
		v.now = time.Now
	}
	if v.s.Tags == nil {
		v.s.Tags = map[string]Hash{}
	}
	if v.s.Sent == nil {
		v.s.Sent = map[int64]Seen{}
	}
	if v.s.Early == nil {
		v.s.Early = map[int64]bool{}
	}
}

// Save returns the state. The app stores it together with what it has read.
func (v *Verifier) Save() ([]byte, error) { return json.Marshal(&v.s) }
