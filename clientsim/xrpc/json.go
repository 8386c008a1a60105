package xrpc

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"

	"mlsd/api/lexcodec"
	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// Encode returns the JSON of a method's input. Every input can be encoded.
func Encode(in any) []byte { return Must(lexcodec.Marshal(in)) }

// Decode reads a method's output. It is an error if a field that the lexicon requires is missing:
// the output would have a zero in its place.
func Decode[T any](body []byte) (_ *T, err error) {
	defer Catch(&err)
	out, members := new(T), any(nil)
	Check(errs.Wrap(json.Unmarshal(body, out), "%T", *out))
	Check(errs.Wrap(json.Unmarshal(body, &members), "%T", *out))
	if missing := missingField(reflect.TypeFor[T](), members); missing != "" {
		return nil, fmt.Errorf("%T: no %s", *out, missing)
	}
	return out, nil
}

// Ask makes a call by the retry rule, and reads its output.
func Ask[T any](ctx context.Context, c *Client, who *Account, call Call) (_ *T, err error) {
	defer Catch(&err)
	answer := Must(c.Do(ctx, who, call))
	return Decode[T](answer.Body)
}

// missingField returns the first required field of t, or of a type within t, that value lacks.
// Optional fields are tagged omitzero.
func missingField(t reflect.Type, value any) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			if missing := missingField(t.Elem(), element); missing != "" {
				return missing
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct { // bytes are an object in JSON
			return ""
		}
		for field := range t.Fields() {
			name, optional, _ := strings.Cut(field.Tag.Get("json"), ",")
			member := value[name]
			if member == nil && optional == "" {
				return name
			}
			if missing := missingField(field.Type, member); missing != "" {
				return missing
			}
		}
	}
	return ""
}
