package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"mlsd/internal/worker"
)

const (
	// liveInterval is how often the live numbers are sent.
	liveInterval = time.Second
	// storedInterval is the shortest time between two readings of the database for the live
	// numbers.
	storedInterval = 15 * time.Second
	// maxViewers is how many pages can be live at one time.
	maxViewers = 100
	// writeTimeout is how long a browser may take to receive an event.
	writeTimeout = 10 * time.Second
)

// Run takes the samples of the last hour until ctx ends. It makes live numbers while a browser
// shows them.
func (c *Console) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() {
		worker.Every("sampler of the console", step, c.Log,
			func(context.Context) error { return c.history.add(time.Now()) }).Run(ctx)
	})
	running.Go(func() {
		worker.Every("live numbers of the console", liveInterval, c.Log, c.broadcast).Run(ctx)
	})
	running.Go(func() { c.runChecks(ctx) })
	running.Wait()
}

// viewers are the live pages. Each event is made once for all of them.
type viewers struct {
	mu    sync.Mutex // guards all fields but drawn
	all   map[chan []byte]bool
	drawn time.Time // when the drawings were sent last; owned by broadcast
}

// add returns a channel of events. ok is false if there are too many viewers.
func (v *viewers) add() (chan []byte, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.all) >= maxViewers {
		return nil, false
	}
	events := make(chan []byte, 4)
	v.all[events] = true
	return events, true
}

func (v *viewers) remove(events chan []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, events)
}

func (v *viewers) none() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.all) == 0
}

// send sends an event to all viewers. A slow viewer misses it, but the next event has all numbers.
func (v *viewers) send(event []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for events := range v.all {
		select {
		case events <- event:
		default:
		}
	}
}

// broadcast sends the live numbers, if a browser shows them.
func (c *Console) broadcast(ctx context.Context) error {
	if c.viewers.none() {
		return nil
	}
	now := time.Now()
	live, err := c.history.live(now)
	if err != nil {
		return err
	}
	texts := c.liveTexts(ctx, live)
	c.viewers.send(event("numbers", texts))
	if now.Sub(c.viewers.drawn) >= step {
		c.viewers.drawn = now
		c.viewers.send(event("drawings", redrawn(draw(c.history.charts, c.history.hour(), live))))
	}
	return nil
}

// liveTexts returns the texts of all elements with data-live, by name.
func (c *Console) liveTexts(ctx context.Context, live sample) map[string]string {
	texts := map[string]string{}
	at := 0
	for _, chart := range c.history.charts {
		for i := range chart.Lines {
			texts[fmt.Sprintf("%s.%d", chart.Key, i)] = chart.unit.written(live.values[at])
			at++
		}
	}
	for _, s := range stocks {
		texts[s.key()] = "–"
	}
	stored := c.stored.read(ctx)
	for _, f := range stored.Facts {
		texts[f.Key] = f.Value
	}
	texts["fault"] = stored.Fault
	texts["check"], texts["checked"] = c.Checks.State().String(), lastCheck(c.Checks.Results())
	texts["at"] = live.at.UTC().Format("15:04:05")
	return texts
}

// redrawn returns the parts of drawings that change.
func redrawn(all []drawing) map[string]string {
	parts := map[string]string{}
	for _, d := range all {
		parts[d.Key+".top"], parts[d.Key+".since"], parts[d.Key+".spoken"] = d.Top, d.Since, d.Spoken
		for _, l := range d.Lines {
			parts[l.Key] = l.Path
		}
	}
	return parts
}

// event is a server-sent event.
func event(name string, data map[string]string) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // texts can always be encoded as JSON
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text)
}

// stream sends live numbers until the browser disconnects.
func (c *Console) stream(w http.ResponseWriter, r *http.Request) {
	events, ok := c.viewers.add()
	if !ok {
		http.Error(w, "Too many pages of the console are live on this node.", http.StatusServiceUnavailable)
		return
	}
	defer c.viewers.remove(events)
	setHeaders(w.Header())
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		c.Log.Warn("live numbers may be cut off", "error", err)
	}
	for {
		if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			c.Log.Warn("live numbers may be cut off", "error", err)
		}
		if err := control.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if _, err := w.Write(e); err != nil {
				return
			}
		}
	}
}
