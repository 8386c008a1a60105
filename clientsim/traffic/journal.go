package traffic

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"mlsd/clientsim/history"
)

// journal keeps when operations on many objects of one kind began and ended. judge decides whether
// each object behaved as if its operations had happened one after the other. It is safe for
// concurrent use. A nil journal keeps nothing.
type journal struct {
	kind  string // what the objects are
	begun time.Time
	model porcupine.Model

	mu      sync.Mutex // guards objects
	objects map[string][]porcupine.Operation
}

func newJournal(kind string, model porcupine.Model) *journal {
	return &journal{kind: kind, begun: time.Now(), model: model, objects: map[string][]porcupine.Operation{}}
}

// now returns the time for the beginning of an operation.
func (j *journal) now() int64 {
	if j == nil {
		return 0
	}
	return int64(time.Since(j.begun))
}

// never is the end of an operation that the server may do at any later time.
const never = math.MaxInt64

// add keeps an operation that ends now.
func (j *journal) add(object string, begun int64, input, output any) {
	j.addUntil(object, begun, j.now(), input, output)
}

// addUntil keeps an operation.
func (j *journal) addUntil(object string, begun, end int64, input, output any) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.objects[object] = append(j.objects[object], porcupine.Operation{
		ClientId: len(j.objects[object]), Input: input, Call: begun, Output: output, Return: end,
	})
}

// change changes the operations on each object, and returns the sum of what f counts.
func (j *journal) change(f func([]porcupine.Operation) int) (sum int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, ops := range j.objects {
		sum += f(ops)
	}
	return sum
}

const (
	// objectLimit bounds the search for one object.
	objectLimit = 10 * time.Second
	// maxUndecided bounds how many objects may take longer: one in 100.
	maxUndecided = 100
)

// judge returns a violation for each object whose operations have no possible order. undecided
// counts the objects whose search took too long.
func (j *journal) judge() (found []history.Violation, operations, undecided int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, object := range slices.Sorted(maps.Keys(j.objects)) {
		ops := j.objects[object]
		operations += len(ops)
		switch porcupine.CheckOperationsTimeout(j.model, ops, objectLimit) {
		case porcupine.Illegal:
			found = append(found, history.Violation{Kind: history.Broken, What: j.explain(object, ops)})
		case porcupine.Unknown:
			undecided++
		}
	}
	return found, operations, undecided
}

// explain lists the operations on an object, the earliest first.
func (j *journal) explain(object string, ops []porcupine.Operation) string {
	const most = 30
	ops = slices.SortedFunc(slices.Values(ops), func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	text := fmt.Sprintf("%s %s: its %d operations have no possible order:", j.kind, object, len(ops))
	for _, op := range ops[:min(len(ops), most)] {
		end := "?"
		if op.Return != never {
			end = time.Duration(op.Return).Round(time.Millisecond).String()
		}
		text += fmt.Sprintf("\n    %s to %s: %v -> %v", time.Duration(op.Call).Round(time.Millisecond), end, op.Input,
			op.Output)
	}
	return text
}
