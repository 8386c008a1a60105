// Package limittest checks that tests give back what they reserve.
package limittest

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"mlsd/internal/await"
	"mlsd/internal/limit"
)

// Watch fails the test if units of a [limit.Queue] are taken when the test has ended, or if requests
// wait for some. A [limit.Memory] consists of queues. Watch looks at every queue that can be reached
// from the roots through the fields of our structs. Fields that a lock guards are not looked at.
//
// roots is called when the test has ended. Call Watch before the cleanups that end what it watches.
func Watch(t testing.TB, roots func() []any) {
	t.Cleanup(func() {
		queues := map[*limit.Queue]string{}
		seen := map[reflect.Value]bool{}
		for _, root := range roots() {
			find(reflect.ValueOf(root), fmt.Sprintf("%T", root), seen, queues)
		}
		if len(queues) == 0 {
			t.Error("no queue can be reached from what is watched")
		}
		for q, name := range queues {
			await.Until(t, "requests that the test has left give back what they took of "+name, func() bool {
				used, waiting := q.Used()
				return used == 0 && waiting == 0
			})
		}
	})
}

var (
	queue = reflect.TypeFor[limit.Queue]()
	locks = []reflect.Type{reflect.TypeFor[sync.Mutex](), reflect.TypeFor[sync.RWMutex]()}
)

// find finds the queues that can be reached from v. path says how.
func find(v reflect.Value, path string, seen map[reflect.Value]bool, queues map[*limit.Queue]string) {
	switch v.Kind() {
	case reflect.Interface:
		find(v.Elem(), path, seen, queues)
	case reflect.Pointer:
		if !v.IsNil() && !seen[v] {
			seen[v] = true
			find(v.Elem(), path, seen, queues)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			find(v.Index(i), fmt.Sprintf("%s[%d]", path, i), seen, queues)
		}
	case reflect.Struct:
		if v.Type() == queue {
			queues[(*limit.Queue)(v.Addr().UnsafePointer())] = path
			return
		}
		if !strings.HasPrefix(v.Type().PkgPath(), "mlsd/") {
			return
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.Type == locks[0] || f.Type == locks[1] { // it guards the fields below
				return
			}
			find(v.Field(i), path+"."+f.Name, seen, queues)
		}
	}
}
