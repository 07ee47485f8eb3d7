/* Memory that ends where a page begins that nobody may touch: reading or writing behind its end ends the test, in any
 * build and whoever does it, code that was made at run time too. */
#ifndef TALWEG_TESTS_PAGE_END_H
#define TALWEG_TESTS_PAGE_END_H

#include <stddef.h>

/* Zeroed. It begins wherever so many bytes before the end are. */
void *page_end_get(size_t bytes);
void page_end_put(void *memory, size_t bytes);

#endif
