package messages

import (
	"context"
	"fmt"
	"time"
)

// Mode is how Send writes. All but Together are there to be measured beside it.
type Mode string

// The modes.
const (
	Together Mode = "together" // in transactions that messages share
	Alone    Mode = "alone"    // each in a transaction of its own
	Nowhere  Mode = "nowhere"  // not at all, but that their tokens are used up: the receipt is made up
)

// SetMode changes how messages are written from now on.
func (l *Log) SetMode(m Mode) error {
	switch m {
	case Together:
		l.otherwise.Store(nil)
	case Alone:
		l.otherwise.Store(&otherwise{l.sendAlone})
	case Nowhere:
		l.otherwise.Store(&otherwise{sendNowhere})
	default:
		return fmt.Errorf("there is no mode %q: only %s, %s and %s", m, Together, Alone, Nowhere)
	}
	return nil
}

// otherwise is what Send does in another mode than Together.
type otherwise struct {
	send func(context.Context, Draft) (Receipt, error)
}

func (l *Log) sendAlone(ctx context.Context, d Draft) (Receipt, error) {
	r := l.write(ctx, []Draft{d}, true)[0]
	return r.Receipt, r.Err
}

func sendNowhere(ctx context.Context, d Draft) (Receipt, error) {
	if d.Token != nil {
		if err := d.Token.Use(ctx); err != nil {
			return Receipt{}, err
		}
	}
	at := time.Now().UTC().Truncate(time.Millisecond)
	return Receipt{ID: idOf(d.ConvoID, 1, at), Seq: 1, Epoch: d.Epoch, At: at}, nil
}
