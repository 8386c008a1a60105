package operator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Fields calls each with the fields of a JSON object, in their order. The name of a field inside
// another one begins with that one's. The elements of a list have numbers.
func Fields(object []byte, each func(name, value string)) error {
	in := json.NewDecoder(bytes.NewReader(object))
	in.UseNumber()
	return fields(in, "", each)
}

// fields reads the value that comes next, below a name.
func fields(in *json.Decoder, name string, each func(name, value string)) error {
	token, err := in.Token()
	if err != nil {
		return err
	}
	delim, nested := token.(json.Delim)
	if !nested {
		each(name, fmt.Sprint(token))
		return nil
	}
	for i := 1; in.More(); i++ {
		inner := fmt.Sprintf("%s %d", name, i)
		if delim == '{' {
			key, err := in.Token()
			if err != nil {
				return err
			}
			inner = strings.TrimSpace(fmt.Sprintf("%s %v", name, key))
		}
		if err := fields(in, inner, each); err != nil {
			return err
		}
	}
	_, err = in.Token() // the end
	return err
}
