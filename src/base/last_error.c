/* The thread's last failure: the one mutable state outside a context; each thread sees only its own. A back end in a
 * shared object of its own has the library's passed in instead of this file. */
#include "status.h"

#include <string.h>

enum { ERROR_TEXT = 2048 };

static _Thread_local char last_error[ERROR_TEXT];

const char *tw_last_error(void) { return last_error; }

void tw_clear_error(void) { last_error[0] = '\0'; }

void twi_set_error(const char *text) {
    last_error[0] = '\0';
    strncat(last_error, text, sizeof last_error - 1);
}
