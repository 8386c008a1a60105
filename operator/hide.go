package operator

import (
	"reflect"
	"strings"

	"mlsd/internal/redact"
)

// hideDIDs returns a result without DIDs, except for the DID that was asked for. It shortens a text
// that is a DID, and removes DIDs from other texts. In a field with the tag dids:"shortened", it
// shortens the DIDs of other texts instead.
func hideDIDs(result any, asked string) any {
	v := reflect.New(reflect.TypeOf(result)).Elem()
	v.Set(reflect.ValueOf(result))
	hide(v, asked, false)
	return v.Interface()
}

// hide changes the texts inside a value.
func hide(v reflect.Value, asked string, shorten bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			hide(v.Elem(), asked, shorten)
		}
	case reflect.Slice:
		for i := range v.Len() {
			hide(v.Index(i), asked, shorten)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() {
				hide(v.Field(i), asked, field.Tag.Get("dids") == "shortened")
			}
		}
	case reflect.String:
		if text := v.String(); text != asked {
			v.SetString(hidden(text, shorten))
		}
	}
}

var didInText = redact.DIDs()

func hidden(text string, shorten bool) string {
	if shorten || didInText.FindString(text) == text {
		return didInText.ReplaceAllStringFunc(text, shortDID)
	}
	return didInText.ReplaceAllLiteralString(text, "did:…")
}

// shortDID returns the beginning of a DID.
func shortDID(did string) string {
	const shown = 4
	at := strings.LastIndexByte(did, ':') + 1
	if len(did) <= at+shown {
		return did
	}
	return did[:at+shown] + "…"
}
