/* Attributes of ops as JSON, by the tables that describe them: model files know no op. */
#ifndef TWI_IO_ATTR_TEXT_H
#define TWI_IO_ATTR_TEXT_H

#include "base/text.h"
#include "json_reader.h"
#include "ops/op.h"

/* {"stride_h":2,...}: what is not the table's default. `preset` holds the defaults. Errors: ARGUMENT if a number is not
 * finite. */
tw_status twi_attrs_write(twi_text *text, const twi_op *op, const void *attrs, const void *preset);
/* Reads such an object over the defaults. Errors: FORMAT for a name that is not in the table, twice there, or of
 * another type. */
tw_status twi_attrs_read(twi_json *json, const twi_op *op, void *attrs);

#endif
